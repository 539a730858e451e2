"""Wrong and right snippets for SST5, besides those in the rules."""

WRONG = {
    "SST501": [
        "if dist.get_rank() == 0:\n    dist.barrier()",
        "if args.local_rank == 0 and step % 10 == 0:\n    dist.all_reduce(loss)",
        "def report(x, rank):\n    if rank != 0:\n        return\n    dist.all_reduce(x)\n    print(x)",
        "if int(os.environ['RANK']) == 0:\n    dist.broadcast_object_list([1])",
        "if is_main_process():\n    dist.all_gather(xs, x)",
        "if not rank:\n    dist.reduce(x, 0)",
    ],
    "SST502": [
        "net = DDP(net)\nif dist.get_rank() == 0:\n    net.eval()\n    out = net(x)",
        "net = DDP(net)\nif rank == 0:\n    loss = net(x)\n    loss.backward()",
    ],
    "SST503": [
        "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\nmodel = nn.DataParallel(model)",
    ],
    "SST504": [
        "net = DDP(net)\nnet = nn.SyncBatchNorm.convert_sync_batchnorm(net)",
    ],
    "SST505": [
        "total = dist.all_reduce(x)",
        "x = dist.broadcast(x, 0)",
        "mean = dist.all_reduce(x) / 2",
    ],
    "SST506": [
        "os.environ['MASTER_PORT'] = '29501'",
        "os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='29501')",
        "dist.init_process_group('nccl', init_method='tcp://127.0.0.1:23456', rank=0, world_size=2)",
        "port = '12355'\nos.environ['MASTER_PORT'] = port",
    ],
    "SST507": [
        "net = DDP(net, device_ids=[0, 1])",
        "ids = list(range(4))\nnet = DDP(net, device_ids=ids)",
        "net = DDP(net, [rank, rank + 1])",
    ],
    "SST508": [
        "model = nn.DataParallel(model)\nmodel.fc.weight.data.zero_()",
        "net = DDP(net)\nprint(net.config)",
        "class T:\n    def __init__(self, net):\n        self.net = nn.DataParallel(net)\n\n"
        "    def go(self, x):\n        return self.net.encode(x)",
        "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\n"
        "for p in model.backbone.parameters():\n    pass",
    ],
    "SST509": [
        "from torch.distributed.fsdp import fully_shard\noptimizer = torch.optim.AdamW(model.parameters())\n"
        "fully_shard(model)",
    ],
    "SST510": [
        "for epoch in range(3):\n    model = nn.DataParallel(model)\n    train(model)",
        "while True:\n    self.net = DDP(self.net)\n    self.net(x)",
    ],
    "SST511": [
        "import torch.multiprocessing as mp\nmp.spawn(train, args=(2,), nprocs=2)",
        "import torch.multiprocessing as mp\n\n\ndef main():\n    mp.spawn(train, nprocs=2)\n\n\nmain()",
    ],
    "SST512": [
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)\n"
        "args = p.parse_args()\ntorch.cuda.set_device(args.local_rank)",
    ],
}

RIGHT = {
    "SST501": [
        "dist.barrier()\nif rank == 0:\n    print('done')",
        "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(x, 0)",
        "if local_rank not in (-1, 0):\n    dist.barrier()\nload()\nif local_rank == 0:\n    dist.barrier()",
        "if rank == 0:\n    dist.all_reduce(x, group=group)",
        "if rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)",
        "if world_size > 1:\n    dist.all_reduce(x)",
        "if rank >= 0:\n    dist.barrier()",
        "if args.local_rank != -1:\n    dist.barrier()",
        "if step == 0:\n    dist.barrier()",
        "if rank == 0:\n    save()\n    dist.barrier()\nelse:\n    synchronize()",
    ],
    "SST502": [
        "net = DDP(net)\nif rank == 0:\n    out = net.module(x)",
        "net = DDP(net)\nout = net(x)\nif rank == 0:\n    print(out)",
        "if rank == 0:\n    out = net(x)",
        "net = DDP(net)\nif rank == 0:\n    out = net(x)\nelse:\n    out = net(y)",
    ],
    "SST503": [
        "dist.init_process_group('nccl')\nmodel = nn.SyncBatchNorm.convert_sync_batchnorm(model)\nif a:\n"
        "    model = nn.DataParallel(model)",
        "if many:\n    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model))\nelse:\n"
        "    model = nn.DataParallel(m)",
        "model = nn.DataParallel(model)",
    ],
    "SST504": [
        "net = nn.SyncBatchNorm.convert_sync_batchnorm(net)\nnet = DDP(net)",
    ],
    "SST505": [
        "dist.all_reduce(x)",
        "work = dist.all_reduce(x, async_op=True)",
        "work = dist.all_reduce(x, dist.ReduceOp.SUM, None, True)",
        "def reduce(x):\n    return dist.all_reduce(x)",
        "works.append(dist.broadcast(x, 0, async_op=flag))",
    ],
    "SST506": [
        "os.environ.setdefault('MASTER_PORT', '29500')",
        "os.environ['MASTER_PORT'] = str(find_free_port())",
        "if 'MASTER_PORT' not in os.environ:\n    os.environ['MASTER_PORT'] = '29500'",
        "dist.init_process_group('nccl', init_method='env://')",
        "env = os.environ.copy()\nenv['MASTER_PORT'] = '29500'",
    ],
    "SST507": [
        "net = DDP(net, device_ids=[rank])",
        "net = DDP(net, device_ids=None)",
        "net = nn.DataParallel(net, device_ids=[0, 1])",
        "net = DDP(net, device_ids=args.ids)",
    ],
    "SST508": [
        "model = nn.DataParallel(model)\nmodel.module.fc.weight.data.zero_()",
        "model = nn.DataParallel(model)\nmodel.train()\nmodel.load_state_dict({})\nmodel.zero_grad()",
        "if args.parallel:\n    model = nn.DataParallel(model)\nprint(model.fc)",
        "model = nn.DataParallel(model)\nif hasattr(model, 'fc'):\n    print(model.fc)",
        "model = nn.DataParallel(model)\nmodel.best = 1\nprint(model.best)",
        "model = nn.DataParallel(model)\nmodel = model.module\nprint(model.fc)",
        "class Mine(nn.DataParallel):\n    pass\n\n\nmodel = Mine(model)\nprint(model.fc)",
        "model = nn.DataParallel(model)\n\n\ndef f(model):\n    return model.fc",
        "model = nn.DataParallel(model)\nmodel = load()\nprint(model.fc)",
    ],
    "SST509": [
        "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n"
        "optimizer = torch.optim.AdamW(model.parameters())",
        "optimizer = torch.optim.AdamW(model.parameters())\nmodel = DDP(model)",
    ],
    "SST510": [
        "for name in names:\n    model = build(name)\n    model = nn.DataParallel(model)",
        "for fold in range(5):\n    model = nn.DataParallel(build())",
        "for i in range(2):\n    models[i] = nn.DataParallel(models[i])",
        "for x in data:\n    if not isinstance(model, nn.DataParallel):\n        model = nn.DataParallel(model)",
        "for attempt in range(3):\n    model = nn.DataParallel(model)\n    break",
        "for model in models:\n    model = nn.DataParallel(model)",
    ],
    "SST511": [
        "import torch.multiprocessing as mp\n\n\ndef main():\n    mp.spawn(train, nprocs=2)\n\n\n"
        "if __name__ == '__main__':\n    main()",
        "import torch.multiprocessing as mp\n\nif args.distributed:\n    mp.spawn(train, nprocs=2)",
        "import torch.multiprocessing as mp\nmp.start_processes(train, nprocs=2, start_method='fork')",
    ],
    "SST512": [
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)\n"
        "rank = int(os.environ['LOCAL_RANK'])",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local-rank', '--local_rank', type=int)",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\n"
        "args = p.parse_args()\nargs.local_rank = 0",
    ],
}
