"""Libraries on top of torch, as their users write it, in a captured cell: the same numbers as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from equality import check_cell
from in_process import cell
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from djinn_lab.capture.recorders import Recorder

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning"),
]


def _step(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


def test_diffusers_denoising_loop(recorder: Recorder) -> None:
    from diffusers import DDIMScheduler, UNet2DConditionModel

    network = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
        norm_num_groups=4, cross_attention_dim=8, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip

    @torch.no_grad()
    def denoise(network: nn.Module) -> torch.Tensor:
        scheduler = DDIMScheduler()
        scheduler.set_timesteps(3)
        image, text = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 8)
        for t in scheduler.timesteps:
            noise = network(image, t, encoder_hidden_states=text).sample
            image = scheduler.step(noise, t, image).prev_sample
        return image

    check_cell(recorder, denoise, network)


def test_diffusers_training_step(recorder: Recorder) -> None:
    from diffusers import DDPMScheduler, UNet2DModel

    network = UNet2DModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)

    def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        clean, noise = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
        timesteps = torch.randint(0, 1000, (2,))
        noisy = DDPMScheduler().add_noise(clean, noise, timesteps)
        loss = _step(F.mse_loss(network(noisy, timesteps).sample, noise))
        optimizer.step()
        return loss

    check_cell(recorder, step, network, optimizer)


def test_diffusers_autoencoder_and_transformer(recorder: Recorder) -> None:
    from diffusers import AutoencoderKL, DiTTransformer2DModel

    autoencoder = AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    transformer = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=4, in_channels=4, num_layers=2, sample_size=4,
        norm_num_groups=4, num_embeds_ada_norm=10,
    )  # fmt: skip

    def pass_through(autoencoder: Any, transformer: Any) -> torch.Tensor:
        latent = autoencoder.encode(torch.randn(2, 3, 8, 8)).latent_dist.sample()
        moved = transformer(latent, torch.tensor([1, 2]), torch.tensor([3, 4])).sample
        return _step(autoencoder.decode(moved).sample.square().mean())

    check_cell(recorder, pass_through, autoencoder, transformer)


@pytest.mark.parametrize("layer", ["GCNConv", "GATConv", "SAGEConv", "GINConv"])
def test_graph_network_training_step(layer: str, recorder: Recorder) -> None:
    from torch_geometric import nn as graph_nn
    from torch_geometric.data import Data

    def make(inputs: int, outputs: int) -> nn.Module:
        if layer == "GINConv":
            return graph_nn.GINConv(nn.Linear(inputs, outputs))
        return getattr(graph_nn, layer)(inputs, outputs)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = make(6, 8), make(8, 3)

        def forward(self, data: Any) -> torch.Tensor:
            hidden = F.dropout(self.first(data.x, data.edge_index).relu(), 0.5, self.training)
            return graph_nn.global_mean_pool(self.second(hidden, data.edge_index), data.batch)

    data = Data(x=torch.randn(10, 6), edge_index=torch.randint(0, 10, (2, 30)))
    data.batch = torch.arange(10) // 5
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)

    def train(network: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        for _ in range(2):
            optimizer.zero_grad()
            loss = _step(F.cross_entropy(network(data), torch.tensor([0, 2])))
            optimizer.step()
        return loss

    check_cell(recorder, train, network, optimizer)


def test_graph_batches_from_a_loader(recorder: Recorder) -> None:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GCNConv

    graphs = [
        Data(x=torch.randn(4 + index, 3), edge_index=torch.randint(0, 4 + index, (2, 6)))
        for index in range(5)
    ]

    def run(convolution: nn.Module) -> list[torch.Tensor]:
        batches = GraphLoader(graphs, batch_size=2, shuffle=True)
        return [convolution(batch.to("cpu").x, batch.edge_index).sum() for batch in batches]

    check_cell(recorder, run, GCNConv(3, 2))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lightning_fit(recorder: Recorder, tmp_path: object) -> None:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = F.cross_entropy(self.network(batch[0]), batch[1])
            self.log("train_loss", loss, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("accuracy", (self.network(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))

    def fit(model: Any) -> dict[str, Any]:
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, enable_checkpointing=False,
            gradient_clip_val=1.0, log_every_n_steps=1,
        )  # fmt: skip
        trainer.fit(model, DataLoader(data, 8, shuffle=True), DataLoader(data, 16))
        return dict(trainer.callback_metrics)

    check_cell(recorder, fit, Classifier())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numpy_pandas_sklearn_and_matplotlib(recorder: Recorder) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import pandas
    from matplotlib import pyplot
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import accuracy_score

    def run() -> dict[str, Any]:
        x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
        figure, axes = pyplot.subplots()
        (line,) = axes.plot(x[:, 0], x[:, 1])
        image = axes.imshow(x.detach())
        bars = axes.bar(range(20), y)
        axes.hist(x[:, 2])
        pyplot.close(figure)
        frame = pandas.DataFrame({"x": x[:, 0], "label": y.tolist()})
        frame["y"] = y.numpy()
        return {
            "sums": [np.sum(x.numpy()), np.asarray(x).mean(), float(np.mean(x.numpy()))],
            "array": np.array([item.item() for item in x[:, 0]]),
            "stacked": np.stack([item.numpy() for item in x]),
            "concatenated": np.concatenate([x, x]),
            "mixed": torch.from_numpy(x.numpy() * 2) + x,
            "frame": frame.groupby("label").mean().to_numpy(),
            "regression": LinearRegression().fit(x, y).coef_,
            "accuracy": accuracy_score(y, (x[:, 0] > 0).int()),
            "line": np.asarray(line.get_xdata(), dtype=np.float32),
            "image": np.asarray(image.get_array()),
            "bars": [bar.get_height() for bar in bars],
        }

    check_cell(recorder, run)


def test_text_of_numbers(recorder: Recorder) -> None:
    def run() -> list[str]:
        x = torch.randn(3, requires_grad=True)
        loss = (x * 2).sum()
        return [
            f"{loss:.3f}",
            f"{loss.item():>8.2e}",
            str(loss),
            repr(x),
            f"{x}",
            str(x.shape),
            f"{loss.item():.2f}",
        ]

    check_cell(recorder, run)


@pytest.mark.filterwarnings("ignore")
def test_compiled_functions_work_or_say_what_to_do(recorder: Recorder) -> None:
    compiled = torch.compile(lambda x: (x * 2).relu().sum(), backend="eager")
    x = torch.randn(4)
    with cell(recorder):
        found = compiled(x)
    assert torch.equal(found.cpu(), (x * 2).relu().sum())


@pytest.mark.filterwarnings("ignore")
def test_scripted_modules(recorder: Recorder) -> None:
    traced = torch.jit.trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3))
    x = torch.randn(4, 3)
    expected = traced(x)
    with cell(recorder):
        found = traced(x)
    assert torch.equal(found.detach().cpu(), expected.detach())
