"""transformers.Trainer with a small BERT: warm-up, clipping, evaluation and a checkpoint each epoch."""

import fingerprint
import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, 40, (count, 10), generator=generator)
        self.labels = torch.randint(0, 3, (count,), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "attention_mask": torch.ones(10, dtype=torch.long),
                "labels": self.labels[index]}


def main():
    transformers.set_seed(11)
    model = BertForSequenceClassification(BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_labels=3,
                                                     num_attention_heads=2, intermediate_size=32,
                                                     max_position_embeddings=16))
    arguments = TrainingArguments("trainer", num_train_epochs=3, per_device_train_batch_size=8, use_cpu=True, seed=11,
                                  gradient_accumulation_steps=2, learning_rate=1e-3, warmup_steps=4,
                                  eval_strategy="epoch", save_strategy="epoch", logging_steps=5, report_to=[],
                                  ddp_backend="gloo", disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(120, 0), eval_dataset=Sentences(30, 1))
    trainer.train()
    fingerprint.say(model)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
