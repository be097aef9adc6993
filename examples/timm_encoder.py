"""An encoder of timm: `num_classes=0` leaves out its classifier, so that it returns features.

python examples/timm_encoder.py
"""

import timm
import torch
from digits import accuracy, batches
from torch import nn

import gcalign


def main(steps: int = 40) -> list[float]:
    torch.manual_seed(0)
    backbone = timm.create_model("resnet10t", pretrained=False, num_classes=0, in_chans=1)
    model = nn.Sequential(nn.Upsample(32), backbone)
    projector = nn.Linear(backbone.num_features, 128)
    criterion = gcalign.method("gca-uot", eps=0.2)
    optimizer = torch.optim.AdamW([*model.parameters(), *projector.parameters()], lr=1e-3)
    losses = []
    for view1, view2 in batches(steps, size=64):
        loss = criterion(projector(model(view1)), projector(model(view2)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy of 5 nearest neighbours {accuracy(model):.3f}")
    return losses


if __name__ == "__main__":
    main()
