"""Links of a knowledge graph, by complex embeddings. No wrapper: gradients and candidates go between ranks by hand."""

import fingerprint
import torch
import torch.distributed as dist

CLANS = 8
ENTITIES = 64
RELATIONS = 5
WIDTH = 16
EPOCHS = 8
STEPS = 7  # an epoch
NEGATIVES = 12  # a rank
TEMPERATURE = 0.5


def load_links(seed=5):
    """(head, relation, tail) of each link, and those to test by. A relation leads from a clan into a clan."""
    gen = torch.Generator().manual_seed(seed)
    into = torch.stack([torch.randperm(CLANS, generator=gen) for _ in range(RELATIONS)])
    heads = torch.randint(0, ENTITIES, (1000,), generator=gen)
    relations = torch.randint(0, RELATIONS, (1000,), generator=gen)
    member = (torch.rand(1000, generator=gen) ** 2 * (ENTITIES // CLANS)).long()  # the first ones have most links
    links = torch.stack([heads, relations, into[relations, heads % CLANS] + CLANS * member], 1)
    return links[:800], links[800:]


def my_share(links, rank, world):
    """Links go to the rank of their head, by blocks of entities; blocks are not of one size."""
    border = [*[0, *range(26, ENTITIES, ENTITIES // world)][:world], ENTITIES]
    own = (links[:, 0] >= border[rank]) & (links[:, 0] < border[rank + 1])
    return own.nonzero().squeeze(1)


def new_params():
    def table(rows):
        return torch.randn(rows, WIDTH) * 0.5
    params = {"real": table(ENTITIES), "imaginary": table(ENTITIES), "turn": torch.rand(RELATIONS, WIDTH) * 6.28,
              "prior": torch.zeros(ENTITIES)}
    for value in params.values():
        value.requires_grad_()
    return params


def turned(params, heads, relations):
    """The heads, each turned by its relation."""
    real, imaginary = params["real"][heads], params["imaginary"][heads]
    angle = params["turn"][relations]
    return real * angle.cos() - imaginary * angle.sin(), real * angle.sin() + imaginary * angle.cos()


def scores(params, heads, relations, candidates):
    """How well each candidate fits as a tail."""
    real, imaginary = turned(params, heads, relations)
    near = real @ params["real"][candidates].T + imaginary @ params["imaginary"][candidates].T
    return near / TEMPERATURE / WIDTH ** 0.5 + params["prior"][candidates]


def link_losses(params, links, negatives):
    """Of each link, the tail against the job's negatives that are not the tail."""
    heads, relations, tails = links.unbind(1)
    right = scores(params, heads, relations, tails).diagonal()
    wrong = scores(params, heads, relations, negatives).masked_fill(negatives[None] == tails[:, None], -torch.inf)
    return torch.cat([right[:, None], wrong], 1).logsumexp(1) - right


def gather_negatives(own, world):
    parts = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(parts, own)
    return torch.cat(parts)


def sum_gradients(params):
    for name in params:
        dist.all_reduce(params[name].grad)


@torch.no_grad()
def keep_bounded(params):
    """No entity is longer than its width allows."""
    norm = (params["real"].square() + params["imaginary"].square()).sum(1, keepdim=True).sqrt()
    shrink = (WIDTH ** 0.5 / norm).clamp(max=1.0)
    params["real"] *= shrink
    params["imaginary"] *= shrink


@torch.no_grad()
def evaluate(params, links, rank, world):
    """The job's mean cross entropy over all tails, and its mean reciprocal rank."""
    heads, relations, tails = links[rank::world].unbind(1)
    every = scores(params, heads, relations, torch.arange(ENTITIES))
    entropy = torch.nn.functional.cross_entropy(every, tails, reduction="sum")
    place = 1 + (every > every.gather(1, tails[:, None])).sum(1)
    total = torch.stack([entropy, (1 / place).sum(), torch.tensor(float(len(tails)))])
    dist.all_reduce(total)
    return (total[0] / total[2]).item(), (total[1] / total[2]).item()


def train():
    rank, world = dist.get_rank(), dist.get_world_size()
    links, test_links = load_links()
    own = my_share(links, rank, world)
    torch.manual_seed(100 + rank)
    params = new_params()
    for value in params.values():
        dist.broadcast(value.data, src=0)
    optimizer = torch.optim.Adagrad([{"params": [params["real"], params["imaginary"]], "lr": 0.4},
                                     {"params": [params["turn"], params["prior"]], "lr": 0.25}])
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=EPOCHS * STEPS // 4)
    order_gen, gen = (torch.Generator().manual_seed(seed + rank) for seed in (200, 300))
    losses, drawn, seen, quality, lrs = [], [], [], [], []
    for epoch in range(EPOCHS):
        seen.append([])
        for part in own[torch.randperm(len(own), generator=order_gen)].tensor_split(STEPS):
            negatives = torch.randint(0, ENTITIES, (NEGATIVES,), generator=gen)
            drawn.append(negatives.tolist())
            each = link_losses(params, links[part], gather_negatives(negatives, world))
            count = torch.tensor(float(len(part)))
            dist.all_reduce(count)
            loss = each.sum() / count
            optimizer.zero_grad()
            loss.backward()
            sum_gradients(params)
            torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
            optimizer.step()
            warmup.step()
            keep_bounded(params)
            losses.append(loss.item())
            seen[-1] += part.tolist()
        entropy, mrr = evaluate(params, test_links, rank, world)
        if len(quality) > 0 and mrr < quality[-1] + 0.03:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        quality.append(mrr)
        lrs.append(optimizer.param_groups[0]["lr"])
        if rank == 0:
            print(f"epoch {epoch + 1}/{EPOCHS} test entropy {entropy:.3f} mrr {mrr:.3f}", flush=True)
    fingerprint.say(torch.nn.ParameterDict(params))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
