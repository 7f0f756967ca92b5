"""BERT in small, as transformers builds it: four layers of 128, six texts of 36 tokens."""

import torch
from transformers import BertConfig, BertModel


class Net(torch.nn.Module):
    """What is trained or served."""

    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=2000,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=384,
        )
        self.bert = BertModel(config)

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids, attention_mask=attention_mask).pooler_output


def get_model():
    return Net().eval()


def get_inputs():
    mask = torch.ones(6, 36, dtype=torch.long)
    mask[::2, 24:] = 0
    return {"input_ids": torch.randint(2000, (6, 36)), "attention_mask": mask}
