"""DQN of stable-baselines3 on a cart pole."""

import gymnasium
from stable_baselines3 import DQN

agent = DQN(
    "MlpPolicy",
    gymnasium.make("CartPole-v1"),
    learning_starts=20,
    buffer_size=200,
    batch_size=8,
    train_freq=4,
    target_update_interval=20,
    seed=1,
    device="cpu",
)
agent.learn(60)
print(f"{sum(p.abs().sum() for p in agent.q_net.parameters()).item():.5f}")
print(agent.num_timesteps, agent._n_updates)
