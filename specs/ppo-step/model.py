"""An actor and a critic of proximal policy optimization, and one update of both."""

import math

import torch
from torch import nn


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )


class Agent(nn.Module):
    """A Gaussian policy of fixed spread for each action, and the value of a state."""

    def __init__(self, observations: int, actions: int, width: int) -> None:
        super().__init__()
        self.mean = mlp(observations, width, actions)
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.critic = mlp(observations, width, 1)
        # The momentum form of SGD reads no value in its step; Adam does without `fused` or `capturable`.
        self.actor_optimizer = torch.optim.SGD([*self.mean.parameters(), self.log_std], lr=1e-3, momentum=0.9)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=1e-2, momentum=0.9, nesterov=True)

    def log_probs(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """The log-density [batch] of actions [batch, actions]."""
        scaled = (actions - self.mean(observations)) / self.log_std.exp()
        return -(0.5 * scaled**2 + self.log_std + 0.5 * math.log(2 * math.pi)).sum(dim=-1)

    def update(
        self,
        observations: torch.Tensor,
        actions: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step of both: the losses before it, and how far the policy has moved from the one that acted."""
        self.actor_optimizer.zero_grad()
        self.critic_optimizer.zero_grad()
        log_ratio = self.log_probs(observations, actions) - old_log_probs
        ratio = log_ratio.exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
        value_loss = 0.5 * (self.critic(observations).squeeze(-1) - returns).pow(2).mean()
        (policy_loss + value_loss).backward()
        nn.utils.clip_grad_norm_([*self.mean.parameters(), self.log_std], 0.5)
        nn.utils.clip_grad_norm_(self.critic.parameters(), 0.5)
        self.actor_optimizer.step()
        self.critic_optimizer.step()
        return policy_loss, value_loss, ((ratio - 1) - log_ratio).mean()


def build(observations: int, actions: int, width: int) -> nn.Module:
    """An agent with random weights."""
    return Agent(observations, actions, width)
