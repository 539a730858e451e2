"""Wrong and right lines of shell, besides those in the rules."""

WRONG = {
    "SST101": [
        "export CUDA_VISIBLE_DEVICES=0，1",
        "CUDA_VISIBLE_DEVICES=“0,1” python a.py",
    ],
    "SST107": [
        "CUDA_VISIBLE_DEVICES=1,1 python a.py",
        'export CUDA_VISIBLE_DEVICES="0,2,0"',
    ],
    "SST108": [
        "export CUDA_VISIBLE_DEVICE=0",
        "CUDA_VISBLE_DEVICES=0 python a.py",
    ],
    "SST110": [
        "export ROCR_VISIBLE_DEVICES=2,3\nexport HIP_VISIBLE_DEVICES=2\npython a.py",
    ],
    "SST601": [
        "export CUDA_VISIBLE_DEVICES= 2,3",
        "if true; then\n  CUDA_VISIBLE_DEVICES=  1 python a.py\nfi",
        "nohup env CUDA_VISIBLE_DEVICES= 2,3 python a.py &",
    ],
    "SST602": [
        "export CUDA_VISIBLE_DEVICES=2, 3",
        "CUDA_VISIBLE_DEVICES=2 ,3 python a.py",
        "CUDA_VISIBLE_DEVICES=0, 1, 2 python a.py",
    ],
    "SST603": [
        "CUDA_VISIBLE_DEVICES = 1 python a.py",
        "export CUDA_VISIBLE_DEVICES =1",
    ],
    "SST604": [
        "CUDA_VISIBLE_DEVICES=0; python a.py",
        "CUDA_VISIBLE_DEVICES=0 && python a.py",
        "OMP_NUM_THREADS=4\npython a.py",
    ],
    "SST605": [
        "python3 -m torch.distributed.launch --nproc_per_node 4 a.py",
        "CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.launch \\\n  --nproc_per_node=2 a.py",
    ],
    "SST606": [
        "export CUDA_VISIBLE_DEVICES=1\ntorchrun --nproc-per-node 2 a.py",
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 4 a.py",
        "CUDA_VISIBLE_DEVICES=0 python -m torch.distributed.run --nproc_per_node=2 a.py",
    ],
    "SST607": [
        "torchrun --nproc_per_node=2 a.py &\ntorchrun --nproc_per_node=2 b.py",
    ],
    "SST608": [
        "python a.py --x 1 CUDA_VISIBLE_DEVICES=0",
        "torchrun a.py CUDA_VISIBLE_DEVICES=0,1",
    ],
    "SST609": [
        "CUDA_VISIBLE_DEVICES=0 docker run image python a.py",
        "CUDA_VISIBLE_DEVICES=0 ssh host python a.py",
        "CUDA_VISIBLE_DEVICES=0 /usr/bin/sudo python a.py",
    ],
}

RIGHT = {
    "SST101": [
        'echo "GPU：0，1"',
        "# CUDA_VISIBLE_DEVICES=0，1",
        "cat <<EOF\nCUDA_VISIBLE_DEVICES=0，1\nEOF",
    ],
    "SST107": [
        "CUDA_VISIBLE_DEVICES=1,11 python a.py",
        'CUDA_VISIBLE_DEVICES="$A,$A" python a.py',
    ],
    "SST108": [
        "export CUDA_HOME=/usr/local/cuda",
        "export CUDA_VISIBLE_DEVICE=0\necho $CUDA_VISIBLE_DEVICE",
        "NVIDIA_VISIBLE_DEVICES=all x",
    ],
    "SST110": [
        "export ROCR_VISIBLE_DEVICES=2,3\nexport HIP_VISIBLE_DEVICES=0,1",
    ],
    "SST601": [
        "CUDA_VISIBLE_DEVICES= python a.py",
        "export CUDA_VISIBLE_DEVICES=",
        'CUDA_VISIBLE_DEVICES="" python a.py 2',
        "export CUDA_VISIBLE_DEVICES= OTHER=2",
    ],
    "SST602": [
        "CUDA_VISIBLE_DEVICES=0,1 python a.py 1",
        "CUDA_VISIBLE_DEVICES='0, 1' python a.py",
        "for i in 0, 1; do x; done",
    ],
    "SST603": [
        'if [ "$CUDA_VISIBLE_DEVICES" = 2 ]; then x; fi',
        "[ $CUDA_VISIBLE_DEVICES = 1 ]",
    ],
    "SST604": [
        "export CUDA_VISIBLE_DEVICES\nCUDA_VISIBLE_DEVICES=0\npython a.py",
        "CUDA_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES python a.py",
        "MASTER_PORT=1234\ntorchrun --master_port $MASTER_PORT a.py",
        "set -a\nCUDA_VISIBLE_DEVICES=0\npython a.py",
        "CUDA_VISIBLE_DEVICES=0 \\\n  python a.py",
        "CUDA_VISIBLE_DEVICES=0\necho done",
    ],
    "SST605": [
        "python -m torch.distributed.run a.py",
        "echo python -m torch.distributed",
        "# python -m torch.distributed.launch a.py",
    ],
    "SST606": [
        "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=gpu a.py",
        "CUDA_VISIBLE_DEVICES=$1 torchrun --nproc_per_node=4 a.py",
        "CUDA_VISIBLE_DEVICES=0 accelerate launch --num_machines 2 --num_processes 2 a.py",
        "CUDA_VISIBLE_DEVICES=0,1 python a.py --num_processes 4",
    ],
    "SST607": [
        "torchrun a.py &\nwait\ntorchrun b.py",
        "torchrun --master_port 1 a.py &\ntorchrun --master_port 2 b.py",
        "torchrun a.py\ntorchrun b.py",
    ],
    "SST608": [
        "CUDA_VISIBLE_DEVICES=0 python a.py",
        "python a.py --env=CUDA_VISIBLE_DEVICES",
        "docker run -e CUDA_VISIBLE_DEVICES=0 python",
    ],
    "SST609": [
        "CUDA_VISIBLE_DEVICES=0 sudo -E python a.py",
        "sudo CUDA_VISIBLE_DEVICES=0 python a.py",
        "CUDA_VISIBLE_DEVICES=0 nohup python a.py",
    ],
}
