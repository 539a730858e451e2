"""Loading by worker processes: order and content are those of one process, kept alive over the epochs too."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Computed(Dataset):
    def __len__(self):
        return 69

    def __getitem__(self, index):
        assert get_worker_info() is not None
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(5, generator=generator)
        return {"x": x, "y": int(x[0] > 0), "index": index}


def main():
    torch.manual_seed(19)
    loader = DataLoader(Computed(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(2):
        seen = []
        for batch in loader:
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += batch["index"].tolist()
        print(f"epoch {epoch} loss {loss.item():.4f} order {seen[:8]} … {seen[-3:]}, each once {len(set(seen)) == 69}")
    torch.save(model.state_dict(), sys.argv[1])


if __name__ == "__main__":
    main()
