"""Wrong and right snippets for SST1, besides those in the rules. Python snippets begin after `lint_cases.HEADER`."""

WRONG = {
    "SST101": [
        "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0、1')",
        "ids = '0，1'\nos.environ['CUDA_VISIBLE_DEVICES'] = ids",
        "device = torch.device('cuda：1')",
        "env = dict(os.environ, CUDA_VISIBLE_DEVICES='０,1')",
        "os.environ.update({'HIP_VISIBLE_DEVICES': '1，2'})",
    ],
    "SST102": [
        "x = torch.zeros(3).to('cuda:0,1')",
        "x = torch.zeros(3, device='cuda0')",
        "device = torch.device('gpu')",
        "device = torch.device('CUDA:1')",
        "device = torch.device('cuda: 1' if torch.cuda.is_available() else 'cpu')",
        "nn.Linear(2, 2).cuda([0, 1])",
        "device = torch.device('0,1')",
    ],
    "SST103": [
        "gpu = 1\nos.environ['CUDA_VISIBLE_DEVICES'] = gpu",
        "os.environ['CUDA_VISIBLE_DEVICES'] = [0, 1]",
        "os.environ.update(OMP_NUM_THREADS=4)",
        "env = os.environ.copy()\nenv['CUDA_VISIBLE_DEVICES'] = 2",
        "os.environ['CUDA_VISIBLE_DEVICES'] = None",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--gpu', type=int, default=0)\n"
        "args = p.parse_args()\nos.environ['CUDA_VISIBLE_DEVICES'] = args.gpu",
    ],
    "SST104": [
        "model = nn.Linear(2, 2).cuda()\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'",
        "def main(args):\n    torch.cuda.set_device(0)\n    os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu",
        "use_cuda = torch.cuda.is_available()\n\n\ndef main(args):\n"
        "    os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu\n\n\nmain(1)",
        "if torch.cuda.is_available():\n    os.environ['CUDA_VISIBLE_DEVICES'] = '1'",
        "x = torch.zeros(2).to('cuda')\nos.putenv('CUDA_VISIBLE_DEVICES', '1')",
    ],
    "SST105": [
        "model = nn.Linear(2, 2)\nmodel.cuda()\nmodel = nn.DataParallel(model, device_ids=[1, 2])",
        "model = nn.DataParallel(nn.Linear(2, 2)).cuda(1)",
        "ids = [2, 3]\nmodel = nn.DataParallel(nn.Linear(2, 2).to('cuda:0'), device_ids=ids)",
        "device = torch.device('cuda:1' if torch.cuda.is_available() else 'cpu')\n"
        "model = nn.Linear(2, 2).to(device)\nmodel = nn.DataParallel(model)",
        "model = nn.DataParallel(nn.Linear(2, 2), device_ids=[1, 2])\nmodel.to('cuda:0')",
    ],
    "SST106": [
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nmodel.cuda(1)",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '2,3'\ndevice = torch.device('cuda:2')",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '4,5'\n\n\ndef main():\n    torch.cuda.set_device(4)",
    ],
    "SST107": [
        "os.environ['CUDA_VISIBLE_DEVICES'] = '3,3'",
        "model = nn.DataParallel(model, device_ids=[0, 0, 1])",
    ],
    "SST108": [
        "os.environ['CUDA_VISIABLE_DEVICES'] = '0'",
        "os.environ['cuda_visible_devices'] = '0'",
        "os.environ.setdefault('CUDA_VISIBLE_DEVICE', '0')",
        "os.environ['CUDA_DEVICES_ORDER'] = 'PCI_BUS_ID'",
        "env = dict(os.environ, CUDA_VISIBLE_DIVICES='0')",
    ],
    "SST109": [
        "for batch in DataLoader(data):\n    x, y = batch\n    x.cuda()\n    y = y.cuda()",
        "for x, y in loaders['train']:\n    x.to(device)",
        "x = torch.zeros(2)\nx.cuda()",
        "loader = DataLoader(data)\nfor i, (x, y) in enumerate(loader):\n    x.to(device)\n    y = y.to(device)",
        "for x, y in train_loader:\n    x, y = x.float(), y\n    y.cuda(non_blocking=True)",
    ],
    "SST110": [
        "os.environ['HIP_VISIBLE_DEVICES'] = '4'\nos.environ['ROCR_VISIBLE_DEVICES'] = '4'",
        "os.environ.update({'ROCR_VISIBLE_DEVICES': '1,2', 'HIP_VISIBLE_DEVICES': '0,2'})",
    ],
    "SST111": [
        "os.system('export CUDA_VISIBLE_DEVICES=0,1')",
        "import subprocess\nsubprocess.run('export CUDA_VISIBLE_DEVICES=0', shell=True)",
        "os.system('CUDA_VISIBLE_DEVICES=0')",
    ],
    "SST112": [
        "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '2,3')",
    ],
    "SST113": [
        "dist.init_process_group('nccl')\ndevice = torch.device('cuda')\nmodel = DDP(nn.Linear(2, 2).to(device))",
        "def main(rank):\n    dist.init_process_group('nccl')\n    model = nn.Linear(2, 2)\n"
        "    model.to('cuda')\n    model = DDP(model)",
    ],
}

RIGHT = {
    "SST101": [
        "os.environ['CUDA_VISIBLE_DEVICES'] = '2,3'",
        "print('选择 GPU：2，3')",
        "os.environ['GREETING'] = '你好，世界'",
        "x = torch.zeros(2).to('cuda:1')",
    ],
    "SST102": [
        "for name in ('cuda', 'cuda:10', 'cpu', 'mps', 'xla:1', 'meta', 'privateuseone:0'):\n    torch.device(name)",
        "device = torch.device('cpu')",
        "x = tokens.to(torch.float16)",
        "frame = tensors.to([1, 2])",
        "device = torch.device(f'cuda:{rank}')",
        "torch.cuda.set_device('cuda:1')",
    ],
    "SST103": [
        "os.environ['CUDA_VISIBLE_DEVICES'] = str(1)",
        "os.environ['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, [0, 1]))",
        "settings = {}\nsettings['CUDA_VISIBLE_DEVICES'] = 0",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--gpu', default='0')\n"
        "args = p.parse_args()\nos.environ['CUDA_VISIBLE_DEVICES'] = args.gpu",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--gpu', type=int)\n"
        "args = p.parse_args()\nargs.gpu = str(args.gpu)\nos.environ['CUDA_VISIBLE_DEVICES'] = args.gpu",
        "value = 1\nvalue = '1'\nos.environ['CUDA_VISIBLE_DEVICES'] = value",
    ],
    "SST104": [
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nmodel = nn.Linear(2, 2).cuda()",
        "print(torch.cuda.device_count())\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'",
        "device = torch.device('cuda')\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'",
        "def train():\n    model.cuda()\n\n\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\ntrain()",
        "if args.gpu:\n    os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu\nelse:\n    torch.cuda.set_device(0)",
        "if args.cpu:\n    model.cpu()\nelif torch.cuda.is_available():\n    model.cuda()\nelse:\n    pass",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nmodel.cuda()\nenv = os.environ.copy()\n"
        "env['CUDA_VISIBLE_DEVICES'] = '0'",
        "def check():\n    return torch.cuda.is_available()\n\n\ndef main():\n"
        "    os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n    check()",
    ],
    "SST105": [
        "model = nn.DataParallel(nn.Linear(2, 2).cuda(1), device_ids=[1, 2])",
        "model = nn.DataParallel(nn.Linear(2, 2)).cuda()",
        "torch.cuda.set_device(1)\nmodel = nn.DataParallel(nn.Linear(2, 2).cuda(), device_ids=[1, 2])",
        "model = nn.DataParallel(nn.Linear(2, 2).cuda(), device_ids=[1])",
        "model = nn.DataParallel(nn.Linear(2, 2).to(args.device), device_ids=args.ids)",
        "model = nn.DataParallel(nn.Linear(2, 2), device_ids=[1, 2]).cuda(1)\nmodel.cpu()",
        "model = nn.DataParallel(nn.Linear(2, 2).cuda())\nlabels = labels.cuda(1)",
    ],
    "SST106": [
        "os.environ['CUDA_VISIBLE_DEVICES'] = '2,3'\nmodel = nn.DataParallel(model, device_ids=[0, 1])",
        "if args.two:\n    os.environ['CUDA_VISIBLE_DEVICES'] = '2'\nmodel.cuda(2)",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nmodel.cuda(1)",
        "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '2')\nmodel.cuda(2)",
        "os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu\nmodel.cuda(2)",
        "x = frame.to(3)",
    ],
    "SST107": [
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0,-1,-1'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1,11'",
        "model = nn.DataParallel(model, device_ids=[0, 1])",
    ],
    "SST108": [
        "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'",
        "os.environ['NVIDIA_VISIBLE_DEVICES'] = 'all'",
        "os.environ['MUSA_VISIBLE_DEVICES'] = '0'",
        "os.environ['CUDA_MODULE_LOADING'] = 'LAZY'",
        "os.environ['CUDA_VISIBLE_DEVICES_BEFORE'] = '0'",
        "os.environ['ASCEND_RT_VISIBLE_DEVICES'] = '0'",
        "config = {}\nconfig['CUDA_VISIBLE_DEVICE'] = 0",
    ],
    "SST109": [
        "model.to(device)\nmodel.cuda()",
        "x = torch.zeros(2)\nx = x.to(device)",
        "for batch in loader:\n    batch.to(device)",
        "from transformers import AutoModel\nfor x, y in train_loader:\n    x.to(device)",
        "for name, module in model.named_children():\n    module.to(device)",
        "for net, optimizer in pairs:\n    net.cuda()",
    ],
    "SST110": [
        "os.environ['HIP_VISIBLE_DEVICES'] = '2,3'",
        "os.environ['ROCR_VISIBLE_DEVICES'] = '2,3'\nos.environ['HIP_VISIBLE_DEVICES'] = '1'",
    ],
    "SST111": [
        "os.system('export CUDA_VISIBLE_DEVICES=1 && python other.py')",
        "os.system('echo $CUDA_VISIBLE_DEVICES')",
        "os.system('CUDA_VISIBLE_DEVICES=0 python other.py')",
    ],
    "SST112": [
        "os.environ['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = ''",
        "os.environ['CUDA_VISIBLE_DEVICES'] = 'GPU-1234'",
    ],
    "SST113": [
        "dist.init_process_group('gloo')\nmodel = DDP(nn.Linear(2, 2))",
        "dist.init_process_group('nccl')\ntorch.cuda.set_device(rank)\nmodel = DDP(nn.Linear(2, 2).cuda())",
        "dist.init_process_group('nccl')\nmodel = DDP(nn.Linear(2, 2).cuda(rank), device_ids=[rank])",
        "dist.init_process_group('nccl')\ndevice = torch.device('cuda', rank)\nx = x.to(device)\n"
        "model = DDP(nn.Linear(2, 2).cuda())",
        "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\ndist.init_process_group('nccl')\n"
        "model = DDP(nn.Linear(2, 2).cuda())",
    ],
}
