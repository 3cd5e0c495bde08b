"""Neural posterior estimation of sbi."""

import torch
from sbi.inference import NPE
from sbi.utils import BoxUniform

torch.manual_seed(0)
prior = BoxUniform(-torch.ones(2), torch.ones(2))
theta = prior.sample((60,))
observed = theta + 0.1 * torch.randn_like(theta)
inference = NPE(prior, density_estimator="mdn", show_progress_bars=False)
estimator = inference.append_simulations(theta, observed).train(max_num_epochs=2, training_batch_size=20)
posterior = inference.build_posterior(estimator)
samples = posterior.sample((4,), x=torch.zeros(2), show_progress_bars=False)
print(samples)
print(posterior.log_prob(samples, x=torch.zeros(2)))
