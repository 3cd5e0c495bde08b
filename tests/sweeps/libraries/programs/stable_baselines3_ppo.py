"""PPO of stable-baselines3 on a cart pole."""

import gymnasium
from stable_baselines3 import PPO

environment = gymnasium.make("CartPole-v1")
agent = PPO("MlpPolicy", environment, n_steps=32, batch_size=16, n_epochs=2, seed=3, device="cpu")
agent.learn(64)
observation, _ = environment.reset(seed=5)
actions = []
for _ in range(10):
    action, _ = agent.predict(observation, deterministic=True)
    observation, _, done, _, _ = environment.step(action)
    actions.append(int(action))
    if done:
        break
print(actions)
print(f"{sum(p.abs().sum() for p in agent.policy.parameters()).item():.5f}")
