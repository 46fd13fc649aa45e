"""step.cpp's twins, layer for layer in the same order, so that the same seed gives both the same weights."""

import torch
from torch import nn
from torch.nn import functional as F

EXPANSION = 4


def convolution(inner, outer, kernel, stride, padding):
    return nn.Conv2d(inner, outer, kernel, stride, padding, bias=False)


class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(784, hidden)
        self.fc2 = nn.Linear(hidden, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Bottleneck(nn.Module):
    def __init__(self, inner, width, stride):
        super().__init__()
        self.conv1 = convolution(inner, width, 1, 1, 0)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width * EXPANSION, 1, 1, 0)
        self.bn3 = nn.BatchNorm2d(width * EXPANSION)
        self.downsample = None
        if stride != 1 or inner != width * EXPANSION:
            self.downsample = nn.Sequential(convolution(inner, width * EXPANSION, 1, stride, 0),
                                            nn.BatchNorm2d(width * EXPANSION))

    def forward(self, x):
        y = torch.relu_(self.bn1(self.conv1(x)))
        y = torch.relu_(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return torch.relu_(y)


class ResNet(nn.Module):
    def __init__(self, blocks, width):
        super().__init__()
        self.conv1 = convolution(3, width, 7, 2, 3)
        self.bn1 = nn.BatchNorm2d(width)
        channels, stages = width, []
        for stage, number in enumerate(blocks):
            for block in range(number):
                stages.append(Bottleneck(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
                channels = (width << stage) * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x):
        x = torch.relu_(self.bn1(self.conv1(x)))
        x = torch.max_pool2d(x, 3, 2, 1)
        return self.fc(self.stages(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_out = nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        n, t, width = x.shape
        parts = self.c_attn(self.ln_1(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, vocabulary, context):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.ln_f(self.blocks(self.wte(tokens) + self.wpe(positions)))
        return F.linear(x, self.wte.weight)
