"""Three modules and a branch on the host between them: the step that make_graphed_callables is documented with."""

import torch
from torch import nn


class Partial:
    """A model that cannot be captured as a whole, its loss and its optimizer."""

    def __init__(self, width: int, hidden: int, classes: int, device: str) -> None:
        self.module1 = nn.Sequential(nn.Linear(width, hidden), nn.Dropout(p=0.2))
        self.module2 = nn.Sequential(nn.Linear(hidden, classes), nn.Dropout(p=0.1))
        self.module3 = nn.Sequential(nn.Linear(hidden, classes), nn.Tanh())
        modules = nn.ModuleList([self.module1, self.module2, self.module3]).to(device)
        self.loss = nn.MSELoss()
        self.optimizer = torch.optim.SGD(modules.parameters(), lr=0.1)

    @torch.enable_grad()
    def step(self, data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss, after one update of the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        hidden = self.module1(data)
        # The branch depends on data, so it stays on the host, between graphs.
        result = self.module2(hidden) if hidden.sum().item() > 0 else self.module3(hidden)
        loss = self.loss(result, target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def build(width: int, hidden: int, classes: int, device: str) -> Partial:
    """Modules with fresh weights, in train mode."""
    return Partial(width, hidden, classes, device)
