"""The `Trainer` of Hugging Face: a model that returns its loss under the name "loss".

python examples/hf_trainer.py
"""

import tempfile

import torch
from digits import Pairs, accuracy, encoder
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import gcalign


class Contrastive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.criterion = encoder(), gcalign.method("gca-uot", eps=0.2)

    def forward(self, view1: Tensor, view2: Tensor) -> dict[str, Tensor]:
        z1, z2 = self.encoder(view1), self.encoder(view2)
        return {"loss": self.criterion(z1, z2), "z1": z1, "z2": z2}


def main(steps: int = 200) -> list[float]:
    torch.manual_seed(0)
    model = Contrastive()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=128, learning_rate=1e-3, logging_steps=1, use_cpu=True,
            save_strategy="no", report_to="none", disable_tqdm=True, remove_unused_columns=False,
            dataloader_drop_last=True, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=Pairs())
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    losses = [float(loss) for loss in losses]
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy of 5 nearest neighbours {accuracy(model.encoder):.3f}")
    return losses


if __name__ == "__main__":
    main()
