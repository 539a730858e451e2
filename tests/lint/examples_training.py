"""Wrong and right snippets for SST2 to SST4, besides those in the rules."""

WRONG = {
    "SST201": [
        "model = DDP(model)\nloader = DataLoader(data, 16, shuffle=True)",
        "shuffle = True\nloader = DataLoader(data, batch_size=16, shuffle=shuffle)\nmodel = DDP(model)\n",
        "class Trainer:\n    def __init__(self, model, data):\n        self.model = DDP(model)\n"
        "        self.loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=4)",
    ],
    "SST202": [
        "sampler = DistributedSampler(data, shuffle=True)\nloader = DataLoader(data, sampler=sampler)\n"
        "for epoch in range(3):\n    for x, y in loader:\n        step(x, y)\n",
        "loader = DataLoader(data, sampler=DistributedSampler(data))\nfor epoch in range(start, args.epochs):\n"
        "    for i, batch in enumerate(loader):\n        step(batch)\n",
    ],
    "SST203": [
        "sampler = DistributedSampler(data)\nloader = DataLoader(data, shuffle=True, sampler=sampler)",
        "loader = DataLoader(data, shuffle=True, sampler=torch.utils.data.RandomSampler(data))",
    ],
    "SST204": [
        "val_loader = DataLoader(data, 64, drop_last=True)",
        "loader = DataLoader(self.test_dataset, batch_size=64, drop_last=True)",
        "def make(eval_set):\n    return DataLoader(eval_set, batch_size=4, drop_last=True)",
    ],
    "SST205": [
        "sampler = DistributedSampler(test_dataset, shuffle=False)",
        "val_sampler = DistributedSampler(self.val_data, num_replicas=4, rank=rank)",
    ],
    "SST206": [
        "class Data(Dataset):\n    def __getitem__(self, i):\n        return self.x[i].to('cuda')\n\n\n"
        "data = Data()\nloader = DataLoader(data, batch_size=4, num_workers=2)",
    ],
    "SST207": [
        "train, val = torch.utils.data.random_split(data, [0.9, 0.1])\nmodel = DDP(model)\n",
        "from torch.utils.data import random_split\ntrain, val = random_split(data, [90, 10])\nmodel = DDP(model)",
    ],
    "SST301": [
        "test_loader = DataLoader(data, batch_size=64)\ncriterion = nn.CrossEntropyLoss()\ntest_loss = 0\n"
        "for x, y in test_loader:\n    loss = criterion(model(x), y)\n    test_loss += loss.item()\n"
        "test_loss /= len(test_loader)",
        "def validate(model):\n    val_loader = DataLoader(data, batch_size=args.batch)\n    total = 0\n"
        "    for x, y in val_loader:\n        loss = F.mse_loss(model(x), y)\n        total += loss.item()\n"
        "    print(total / len(val_loader))",
    ],
    "SST302": [
        "model = nn.DataParallel(model, device_ids=[0, 1])\nloss, scores = model(x, y)\nloss.backward()",
        "model = nn.DataParallel(model).cuda()\noutput = model(x, labels=y)\noutput.loss.backward()",
        "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\nloss = model(x)\nloss.backward()",
        "class Trainer:\n    def __init__(self, net):\n        self.net = nn.DataParallel(net)\n\n"
        "    def step(self, x):\n        loss = self.net(x)\n        loss.backward()",
    ],
    "SST303": [
        "with torch.inference_mode():\n    loss = F.mse_loss(model(x), y)\n    loss.backward()",
        "with torch.no_grad():\n    for x in data:\n        loss = model(x)\n        loss.backward()",
    ],
    "SST304": [
        "for x, y in data:\n    loss = F.mse_loss(model(x), y)\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    running_loss += loss",
        "class T:\n    def epoch(self):\n        for x in self.data:\n            loss = self.loss(x)\n"
        "            loss.backward()\n            self.total += loss",
    ],
    "SST305": [
        "import pytorch_lightning as pl\n\n\nclass M(pl.LightningModule):\n    def test_step(self, batch, i):\n"
        "        loss = F.mse_loss(self(batch[0]), batch[1])\n        self.log('test', loss, on_epoch=True)\n\n"
        "\npl.Trainer(strategy='ddp', devices='auto')",
    ],
    "SST306": [
        "from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "model, loader = accelerator.prepare(model, loader)\nfor x in loader:\n    loss = model(x)\n"
        "    loss.backward()",
    ],
    "SST401": [
        "def main():\n    if args.resume:\n"
        "        model.load_state_dict(torch.load('a.pt', map_location='cpu'))\n"
        "    net = nn.DataParallel(model)\n    torch.save({'net': net.state_dict()}, 'a.pt')",
    ],
    "SST402": [
        "model = nn.DataParallel(model).cuda()\ntorch.save(model.state_dict(), 'model.pt')",
        "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\n"
        "torch.save(model.state_dict(), 'model.pt')",
        "net = DDP(net)\nif rank == 0:\n    torch.save({'epoch': 1, 'net': net.state_dict()}, path)",
    ],
    "SST403": [
        "model = nn.DataParallel(model)\ntorch.save(model, 'model.pt')",
        "net = DDP(net)\nif rank == 0:\n    torch.save({'net': net}, 'model.pt')",
    ],
    "SST404": [
        "model = DDP(model)\nmodel.load_state_dict(torch.load('a.pt'))",
        "dist.init_process_group('nccl')\nstate = torch.load(args.resume)\n"
        "model.load_state_dict(state['model'])\noptimizer.load_state_dict(state['optimizer'])\n"
        "epoch = state['epoch']",
    ],
    "SST405": [
        "dist.init_process_group('nccl')\nnet = DDP(net)\nfor epoch in range(3):\n"
        "    torch.save(net.module.state_dict(), 'a.pt')",
        "def save(net):\n    torch.save(net.module.state_dict(), 'a.pt')\n\n\ndef main(net):\n"
        "    dist.init_process_group('nccl')\n    net = DDP(net)\n    save(net)\n\n\nmain(1)",
    ],
    "SST406": [
        "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\n"
        "optimizer.load_state_dict(torch.load('o.pt'))\nmodel.to('cuda')",
    ],
}

RIGHT = {
    "SST201": [
        "model = DDP(model)\nloader = DataLoader(data, shuffle=False)",
        "model = DDP(model)\nloader = DataLoader(data, batch_sampler=MySampler(data))",
        "model = DDP(model)\ndata = split_dataset_by_node(data)\nloader = DataLoader(data, shuffle=True)",
        "model = nn.DataParallel(model)\nloader = DataLoader(data, shuffle=True)",
        "model = DDP(model)\ndata = data[rank::world_size]\nloader = DataLoader(data, shuffle=True)",
        "if distributed:\n    model = DDP(model)\nelse:\n    loader = DataLoader(data, shuffle=True)",
    ],
    "SST202": [
        "sampler = DistributedSampler(data, shuffle=False)\nloader = DataLoader(data, sampler=sampler)\n"
        "for epoch in range(3):\n    for x, y in loader:\n        step(x, y)\n",
        "sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)\n"
        "for epoch in range(3):\n    loader.sampler.set_epoch(epoch)\n    for x in loader:\n        step(x)",
        "sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)\nfor x in loader:\n    step(x)",
        "def make(data):\n    return DataLoader(data, sampler=DistributedSampler(data))",
    ],
    "SST203": [
        "sampler = DistributedSampler(data) if distributed else None\n"
        "loader = DataLoader(data, shuffle=True, sampler=sampler)",
        "loader = DataLoader(data, shuffle=True, sampler=None)",
        "loader = DataLoader(data, shuffle=False, sampler=DistributedSampler(data))",
    ],
    "SST204": [
        "train_loader = DataLoader(data, 64, drop_last=True)",
        "val_loader = DataLoader(data, 64)",
        "latest = DataLoader(device_data, 64, drop_last=True)",
        "val_loader = DataLoader(data, 64, drop_last=False)",
        "loader = DataLoader(train_test_data, drop_last=True)",
    ],
    "SST205": [
        "sampler = DistributedSampler(train_data)",
        "sampler = DistributedSampler(val_data, shuffle=False, drop_last=True)",
        "sampler = DistributedSampler(val_data)\nscores = accelerator.gather_for_metrics(scores)",
        "sampler = DistributedSampler(latest)",
    ],
    "SST206": [
        "class Data(Dataset):\n    def __getitem__(self, i):\n        return self.x[i].cuda()\n\n\n"
        "loader = DataLoader(Data())",
        "class Data(Dataset):\n    def __getitem__(self, i):\n        return self.x[i]\n\n\n"
        "loader = DataLoader(Data(), num_workers=4)",
    ],
    "SST207": [
        "torch.manual_seed(0)\ntrain, val = torch.utils.data.random_split(data, [9, 1])\nmodel = DDP(model)\n",
        "train, val = torch.utils.data.random_split(data, [9, 1])",
    ],
    "SST301": [
        "val_loader = DataLoader(data, batch_size=64, drop_last=True)\ntotal = 0\nfor x, y in val_loader:\n"
        "    loss = F.mse_loss(x, y)\n    total += loss.item()\nprint(total / len(val_loader))",
        "val_loader = DataLoader(data, batch_size=64)\ntotal = 0\nfor x, y in val_loader:\n"
        "    loss = F.mse_loss(x, y, reduction='sum')\n    total += loss.item()\nprint(total / len(val_loader))",
        "val_loader = DataLoader(data)\ntotal = 0\nfor x, y in val_loader:\n    loss = F.mse_loss(x, y)\n"
        "    total += loss.item()\nprint(total / len(val_loader))",
        "train_loader = DataLoader(data, batch_size=64)\ntotal = 0\nfor x, y in train_loader:\n"
        "    loss = F.mse_loss(x, y)\n    total += loss.item()\nprint(total / len(train_loader))",
    ],
    "SST302": [
        "model = nn.DataParallel(model)\noutput = model(x)\nloss = F.mse_loss(output, y)\nloss.backward()",
        "model = nn.DataParallel(model)\nloss = model(x).sum()\nloss.backward()",
        "if args.multi_gpu:\n    model = nn.DataParallel(model)\nloss = model(x)\nloss.backward()",
        "n_gpu = torch.cuda.device_count()\nif n_gpu > 1:\n    model = nn.DataParallel(model)\n"
        "loss = model(x)\nif n_gpu > 1:\n    loss = loss.mean()\nloss.backward()",
        "model = nn.DataParallel(model, device_ids=[0])\nloss = model(x)\nloss.backward()",
        "model = DDP(model)\nloss = model(x)\nloss.backward()",
        "model = nn.DataParallel(model)\nout = model(x)\nout.backward(torch.ones_like(out))",
        "for ids in (None, [0], [0, 1]):\n    model = nn.DataParallel(net, device_ids=ids)\n"
        "    loss = model(x)\n    loss.backward()",
    ],
    "SST303": [
        "loss = model(x)\nwith torch.no_grad():\n    loss.backward()",
        "with torch.no_grad():\n    with torch.enable_grad():\n        loss = model(x)\n        loss.backward()",
        "with torch.no_grad():\n    loss = model(x)\nloss = model(x)\nloss.backward()",
    ],
    "SST304": [
        "for x in data:\n    loss = model(x)\n    loss.backward()\n    total += loss.item()",
        "for x in data:\n    loss = model(x)\n    total += loss\ntotal.backward()",
        "for x in data:\n    loss = model(x)\n    loss.backward()\n    loss = loss.item()\n    total += loss",
        "for x in data:\n    total = 0\n    loss = model(x)\n    loss.backward()\n    total += loss",
        "for x in data:\n    loss = model(x)\n    loss = loss.detach()\n    total += loss",
    ],
    "SST305": [
        "import lightning as L\n\n\nclass M(L.LightningModule):\n    def validation_step(self, batch, i):\n"
        "        loss = F.mse_loss(self(batch[0]), batch[1])\n        self.log('val', loss)\n\n\n"
        "L.Trainer(devices=1)",
        "import lightning as L\n\n\nclass M(L.LightningModule):\n    def training_step(self, batch, i):\n"
        "        loss = F.mse_loss(self(batch[0]), batch[1])\n        self.log('train', loss)\n\n\n"
        "L.Trainer(devices=2)",
        "import lightning as L\n\n\nclass M(L.LightningModule):\n    def validation_step(self, batch, i):\n"
        "        self.accuracy(self(batch[0]), batch[1])\n        self.log('acc', self.accuracy)\n\n\n"
        "L.Trainer(devices=2)",
    ],
    "SST306": [
        "from accelerate import Accelerator\naccelerator = Accelerator()\nmodel = accelerator.prepare(model)\n"
        "accelerator.backward(loss)",
        "loss = model(x)\nloss.backward()",
        "from accelerate import Accelerator\naccelerator = Accelerator()\nif accelerator.is_main_process:\n"
        "    loss.backward()",
    ],
    "SST401": [
        "model = nn.DataParallel(model)\nmodel.load_state_dict(torch.load('a.pt'))\n"
        "torch.save(model.state_dict(), 'a.pt')",
    ],
    "SST402": [
        "model = nn.DataParallel(model)\ntorch.save(model.module.state_dict(), 'a.pt')",
        "torch.save(model.state_dict(), 'a.pt')",
        "model = nn.DataParallel(model)\n"
        "torch.save(model.state_dict() if not hasattr(model, 'module') else model.module.state_dict(), 'a')",
        "model = nn.DataParallel(model)\n"
        "state = {k.replace('module.', ''): v for k, v in model.state_dict().items()}\ntorch.save(state, 'a')",
        "if args.parallel:\n    model = nn.DataParallel(model)\ntorch.save(model.state_dict(), 'a.pt')",
    ],
    "SST403": [
        "torch.save(model, 'a.pt')",
        "model = nn.DataParallel(model)\ntorch.save(model.module.state_dict(), 'a.pt')",
    ],
    "SST404": [
        "model.load_state_dict(torch.load('a.pt'))",
        "model = DDP(model)\nmodel.load_state_dict(torch.load('a.pt', map_location=device))",
        "model = DDP(model)\ndata = torch.load('data.pt')\nprint(len(data))",
        "model = DDP(model)\nmodel.load_state_dict(torch.load('a.pt', device))",
        "model = DDP(model)\nscaler.load_state_dict(torch.load('scaler.pt'))",
    ],
    "SST405": [
        "dist.init_process_group('nccl')\nnet = DDP(net)\nif rank == 0:\n"
        "    torch.save(net.module.state_dict(), 'a.pt')",
        "dist.init_process_group('nccl')\nnet = DDP(net)\ntorch.save(net.module.state_dict(), f'a-{rank}.pt')",
        "def save(net):\n    torch.save(net, 'a.pt')\n\n\ndef main(net):\n    dist.init_process_group('nccl')\n"
        "    net = DDP(net)\n    if is_main_process():\n        save(net)\n\n\nmain(1)",
        "def save(net):\n    if dist.get_rank() != 0:\n        return\n    torch.save(net, 'a.pt')\n\n\n"
        "def main(net):\n    dist.init_process_group('nccl')\n    net = DDP(net)\n    save(net)\n\n\nmain(1)",
        "def library_function(net):\n    torch.save(net, 'a.pt')\n\n\ndist.init_process_group('nccl')\nnet = DDP(net)",
        "torch.save(net.state_dict(), 'a.pt')",
    ],
    "SST406": [
        "model = Net().cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\n"
        "optimizer.load_state_dict(torch.load('o.pt'))\nmodel.cuda()",
        "model = Net()\nmodel.to(device)\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\n"
        "optimizer.load_state_dict(torch.load('o.pt'))\nmodel.to('cuda')",
        "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\nmodel.cuda()\n"
        "optimizer.load_state_dict(torch.load('o.pt'))",
    ],
}
