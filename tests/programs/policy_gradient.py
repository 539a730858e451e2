"""PPO on recorded transitions: normalised advantages, clipped ratios, entropy, early stop by the divergence."""

import sys

import torch
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.actor, self.critic = nn.Linear(16, 3), nn.Linear(16, 1)

    def act(self, states):
        distribution = Categorical(logits=self.actor(self.shared(states)))
        action = distribution.sample()
        return action, distribution.log_prob(action)

    def forward(self, states, actions):
        hidden = self.shared(states)
        distribution = Categorical(logits=self.actor(hidden))
        return distribution.log_prob(actions), self.critic(hidden).squeeze(-1), distribution.entropy()


torch.manual_seed(61)
policy = ActorCritic()
states = torch.randn(58, 4)
with torch.no_grad():
    actions, old_log_probs = policy.act(states)
rewards = (actions == (states[:, 0] > 0)).float()
returns = rewards + 0.5 * rewards.roll(-1)
sampler = BatchSampler(SubsetRandomSampler(range(58)), 16, drop_last=False)
loader = DataLoader(TensorDataset(states, actions, old_log_probs, returns), batch_sampler=sampler)
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3, eps=1e-5)

for epoch in range(4):
    divergences = []
    for state, action, old, target in loader:
        log_prob, value, entropy = policy(state, action)
        advantage = target - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-7)
        ratio = torch.exp(log_prob - old)
        surrogate = torch.min(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage)
        loss = -surrogate.mean() + 0.5 * (value - target).pow(2).mean() - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        divergences.append((old - log_prob).mean().item())
    clipped = ((ratio - 1).abs() > 0.05).float().mean()
    print(f"epoch {epoch} loss {loss.item():.4f} clipped {clipped:.4f} {divergences[-1]:.5f}")
    if abs(sum(divergences) / len(divergences)) > 0.05:
        print("stopped")
        break

# REINFORCE over the whole record, without a loader
for _ in range(2):
    log_prob, value, _ = policy(states, actions)
    loss = -(log_prob * (returns - returns.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"reinforce {loss.item():.4f}")
torch.save(policy.state_dict(), sys.argv[1])
