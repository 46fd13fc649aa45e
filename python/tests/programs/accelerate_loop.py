"""HuggingFace Accelerate's loop: prepare, accumulate, clip, gather_for_metrics."""

import fingerprint
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(42)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    test = TensorDataset(torch.randn(45, 20), torch.randint(0, 4, (45,)))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    model, optimizer, loader, test_loader, schedule = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=8, shuffle=True), DataLoader(test, batch_size=8), schedule)
    for epoch in range(3):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right = count = 0
        for x, y in test_loader:
            with torch.no_grad():
                outputs = model(x)
            predicted, wanted = accelerator.gather_for_metrics((outputs.argmax(1), y))
            right, count = right + predicted.eq(wanted).sum().item(), count + len(wanted)
        accelerator.print(f"epoch {epoch}: {right} of {count}")
        accelerator.wait_for_everyone()
        accelerator.save(accelerator.unwrap_model(model).state_dict(), "accelerate.pt")
    fingerprint.say(model)
    accelerator.end_training()


if __name__ == "__main__":
    main()
