"""Fine-tune the character model of `char_transformer.py` on Python source code, with low-rank adapters.

    python examples/char_transformer.py   # makes the model in char-out/
    python examples/lora.py               # adapts it to code
    python examples/lora.py --quantize    # the same on 8-bit weights (QLoRA)

The model stays as it is, bit for bit: adapters of rank 8 beside its linear maps are all that is trained.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from pathlib import Path

from char_transformer import CONTEXT, CharModel, Run, encode, evaluate, printable, sample, train

import functad as fd
from functad import nn


def main() -> None:
    """Adapt, report, save; exits with an error if the code was not learnt or the base was touched."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=Path("char-out/model.safetensors"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--quantize", action="store_true", help="keep the weights of the model in 8 bits")
    parser.add_argument("--out", type=Path, default=Path("lora-out"))
    args = parser.parse_args()
    if not args.model.exists():
        sys.exit(f"there is no {args.model}; run examples/char_transformer.py first")

    code = "\n".join(printable(inspect.getsource(module)) for module in (argparse, inspect, textwrap))
    cut = len(code) * 9 // 10
    data, held_out = encode(code[:cut]), encode(code[cut:])

    base = CharModel(fd.random.key(0)).load(args.model)
    if args.quantize:
        base = nn.quantize(base)
    model = nn.lora(base, rank=args.rank, alpha=2 * args.rank, key=fd.random.key(1))
    trained = sum(p.size for p in model.parameters() if not p.is_frozen)
    print(f"{trained:,} of {model.num_params:,} parameters are trained")

    opt = fd.optim.adamw(fd.optim.cosine_decay_schedule(1e-2, args.steps), weight_decay=0.0)
    before = evaluate(model, held_out)
    run = train(Run(model, opt.init(model), []), opt, data, args.steps)
    after = evaluate(run.model, held_out)
    merged = nn.merge_lora(run.model)
    print(f"loss on held-out code: {before:.3f} before, {after:.3f} after, {evaluate(merged, held_out):.3f} merged")
    print("--- before\n" + sample(base, "    def ", CONTEXT, fd.random.key(2)))
    print("--- after\n" + sample(merged, "    def ", CONTEXT, fd.random.key(2)))

    args.out.mkdir(parents=True, exist_ok=True)
    merged.save(args.out / "merged.safetensors")
    kept = {name: p for name, p in run.model.named_parameters() if p.is_frozen}
    whole = {p.id: p for p in base.parameters()}
    touched = [name for name, p in kept.items() if (p.numpy() != whole[p.id].numpy()).any()]
    if touched or after > before - 0.1:
        sys.exit(f"touched: {touched}; loss {before:.3f} -> {after:.3f}")


if __name__ == "__main__":
    main()
