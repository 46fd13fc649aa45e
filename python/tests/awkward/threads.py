"""Threads, executors and event loops."""

import asyncio
import concurrent.futures
import contextvars
import queue
import signal
import sys
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset
from usual import batch, loss_of, mlp, quick, sgd, show, started, train

SEVERAL = "several threads of this process train"


def in_a_thread(work, **options):
    thread = threading.Thread(target=work, **options)
    thread.start()
    thread.join()


@started(says=SEVERAL)
def several_train():
    """Two threads train, each its own model, in turn, so that what they print has an order."""
    turn = threading.Barrier(2)

    def work(number):
        model = mlp()
        optimizer = sgd(model)
        for step in range(8):
            optimizer.zero_grad()
            loss = loss_of(model, step + number)
            loss.backward()
            optimizer.step()
            for who in range(2):
                turn.wait()
                if who == number:
                    show(number, loss)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def another_than_the_main_one():
    """A thread trains while the main one waits, one after another."""
    for _ in range(3):
        in_a_thread(lambda: train(mlp()))


def only_loads():
    """A thread loads and moves batches; the main one trains."""
    ready = queue.Queue(2)

    def load():
        data = TensorDataset(torch.stack([batch(step) for step in range(8)]))
        for [inputs] in DataLoader(data, batch_size=None):
            ready.put(inputs.clone())
        ready.put(None)
    thread = threading.Thread(target=load, name="loads")
    thread.start()
    model = mlp()
    optimizer = sgd(model)
    for inputs in iter(ready.get, None):
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        show(loss)
    thread.join()


def only_evaluates():
    """A thread evaluates a copy of the model without gradients, while the main one trains."""
    work, model = queue.Queue(), mlp()

    def evaluate():
        other = mlp()
        for state in iter(work.get, None):
            other.load_state_dict(state)
            with torch.no_grad():
                results.append(other(batch(99)).sum())
    results = []
    thread = threading.Thread(target=evaluate)
    thread.start()
    train(model, each=lambda _step: work.put({name: one.clone() for name, one in model.state_dict().items()}))
    work.put(None)
    thread.join()
    show(*results)


def daemon_at_the_end():
    """A daemon thread is in the middle of a wait when the process ends."""
    forever = threading.Event()
    threading.Thread(target=forever.wait, daemon=True).start()
    train(mlp())


@quick()
def event_loop():
    """asyncio trains in an executor, beside tasks, and handles a signal through its loop."""
    async def main():
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        ticks = 0

        async def tick():
            nonlocal ticks
            while not stop.is_set():
                ticks += 1
                await asyncio.sleep(0.001)
        task = asyncio.create_task(tick())
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            await loop.run_in_executor(pool, lambda: train(mlp()))
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        await task
        show(ticks > 0)
    asyncio.run(main())


def coroutines_that_train():
    """Two coroutines of one thread train in turn, each its own model; and an asynchronous generator of batches."""
    async def batches():
        for step in range(4):
            await asyncio.sleep(0)
            yield batch(step)

    async def fit(number):
        model = mlp()
        optimizer = sgd(model)
        async for inputs in batches():
            optimizer.zero_grad()
            loss = (model(inputs) * (number + 1)).pow(2).mean()
            loss.backward()
            await asyncio.sleep(0)
            optimizer.step()
            show(number, loss)

    async def main():
        await asyncio.gather(fit(0), fit(1))
    asyncio.run(main())


def leaves_by_sys_exit():
    """A thread calls sys.exit, another one raises, and both are handled by threading.excepthook or left to Python."""
    in_a_thread(lambda: sys.exit(3))
    threading.excepthook = lambda given: show("caught", given.exc_type.__name__, given.thread.name)
    in_a_thread(lambda: train(mlp(), steps=2) and 1 / 0, name="divides")
    threading.excepthook = threading.__excepthook__
    in_a_thread(lambda: 1 / 0, name="divides again")
    train(mlp())


def pool_of_one():
    """A ThreadPoolExecutor of one thread trains what it is given, and the main thread then goes on."""
    model = mlp()
    optimizer = sgd(model)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(train, model, optimizer, 2).result()
    train(model, optimizer)


def timers():
    """threading.Timer and a condition, beside the training."""
    fired = threading.Event()
    timer = threading.Timer(0.01, fired.set)
    timer.start()
    train(mlp())
    fired.wait()
    timer.join()
    show(timer.is_alive(), threading.active_count())


@started(says=SEVERAL)
def locals_of_threads():
    """threading.local and contextvars keep what the program put there."""
    own, variable = threading.local(), contextvars.ContextVar("variable", default=0)

    def work(number):
        own.value = number
        variable.set(number)
        train(mlp(), steps=2)
        show(own.value, variable.get())
    work(1)
    in_a_thread(lambda: work(2))
    context = contextvars.copy_context()
    context.run(work, 3)
    show(own.value, variable.get(), len(contextvars.copy_context()))


def small_stacks():
    """A thread with a small stack trains, with a low limit on recursion."""
    threading.stack_size(256 * 1024)
    limit, model = sys.getrecursionlimit(), mlp()
    optimizer = sgd(model)

    def work():
        sys.setrecursionlimit(120)
        train(model, optimizer, steps=30)
        sys.setrecursionlimit(limit)
    in_a_thread(work)


def deep_recursion():
    """The training is called from deep inside: near to the limit on recursion, so that a few frames more would fail."""
    def depth(call, left):
        return call() if left == 0 else depth(call, left - 1)

    def most(call):
        """Frames that can lie below the call."""
        low, high = 0, sys.getrecursionlimit()
        while low < high - 1:
            middle = (low + high) // 2
            try:
                depth(call, middle)
                low = middle
            except RecursionError:
                high = middle
        return low
    model = mlp()
    optimizer = sgd(model)
    loss_of(model).backward()
    optimizer.step()
    quiet = most(lambda: None)
    show(quiet - most(optimizer.step) < 60, quiet - most(lambda: loss_of(model).backward()) < 60)


def handled_in_the_main_thread():
    """A signal comes while another thread trains; its handler runs in the main one."""
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread().name))

    def work():
        for _ in range(3):
            train(mlp(), steps=2)
            signal.raise_signal(signal.SIGUSR1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    show(seen)
