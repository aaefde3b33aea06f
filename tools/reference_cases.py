"""The cases of compare_reference.py: recipes, data, and command lines of trifold."""

import random
from math import prod
from pathlib import Path

# A decoder large enough for the compiled decoding step.
DECODER = """
description: A causal model with random text, for a comparison of bits.
task: {kind: causal}
data: {train: "embedded:smoke", valid: "embedded:smoke", field: source}
tokenizer: {kind: char, vocab_size: 60}
model: {preset: gpt2, n_layers: 3, d_model: 384, n_heads: 6, d_ff: 1536, max_positions: 128}
batch: {tokens: 1024}
train: {steps: 6, learning_rate: 0.001, warmup: 2, validate_every: 6, save_every: 6,
  keep_last: 1, log_every: 1}
"""
# A tiny model of long rows: with more than 256 queries and local attention, sparse kernels run.
TINY = """
description: A tiny model, for a comparison of bits.
data: {train: long.txt, valid: short.txt}
tokenizer: {kind: char}
model: {d_model: 32, n_layers: 2, n_heads: 2, d_ff: 64, max_positions: 512, norm_placement: pre}
batch: {tokens: 1600}
train: {steps: 3, learning_rate: 0.003, warmup: 1, validate_every: 3, save_every: 3, keep_last: 1,
  log_every: 1, samples: 1}
"""
STACKS = {
    "decoder": "task.kind=causal model.shape=decoder",
    "encoder": "task.kind=masked model.shape=encoder",
    "encoder-decoder": "task.kind=spans task.written=2 model.shape=encoder-decoder",
    "streams": "task.kind=permutation model.shape=encoder model.query_stream=true",
}
# Parts of the Transformer: the stack in which they are trained, and settings of the model.
PARTS = {
    "softmax": ("decoder", ""),
    "window": ("decoder", "sliding_window=16 attention_dropout=0.1"),
    "window-pattern": (
        "decoder",
        "sliding_window=16 window_pattern=[local,8,global] n_layers=3 positions=rotary "
        "rotary_local_theta=100 n_kv_heads=1 attention_sinks=true score_soft_cap=20",
    ),
    "window-alibi": ("decoder", "sliding_window=16 positions=alibi"),
    "alibi": ("decoder", "positions=alibi d_head=256"),
    "recurrence": (
        "decoder",
        "recurrence.size=64 recurrence.reach=32 positions=relative-sinusoidal",
    ),
    "elu": ("decoder", "attention=elu"),
    "favor": ("decoder", "attention=favor n_features=16"),
    "spans": ("decoder", "attention=spans span_keys=4 positions=learned"),
    "lsh": (
        "decoder",
        "attention=lsh lsh.chunk=32 lsh.hashes=2 residual=reversible tie_lm_head=false",
    ),
    "latent": (
        "decoder",
        "latent.width=16 latent.query_width=24 latent.d_rotary=8 latent.d_value=12 "
        "positions=rotary",
    ),
    "experts": ("decoder", "experts.count=4 experts.per_token=2 experts.shared=1"),
    "window-encoder": ("encoder", "sliding_window=16 qk_norm=head"),
    "global": ("encoder", "sliding_window=16 global_tokens=first global_projections=true"),
    "sparse-blocks": ("encoder", "sparse_blocks.size=16 sparse_blocks.random=1"),
    "low-rank": ("encoder", "attention=low-rank rank=16"),
    "favor-encoder": ("encoder", "attention=favor n_features=16"),
    "spans-encoder": ("encoder", "attention=spans span_keys=4"),
    "lsh-encoder": (
        "encoder",
        "attention=lsh lsh.chunk=32 lsh.layers=[local,lsh] positions=axial axial_shape=[16,32] "
        "axial_widths=[16,16]",
    ),
    "disentangled": (
        "encoder",
        "positions=disentangled relative_shared=true norm_placement=post convolution.kernel=3",
    ),
    "experts-encoder": (
        "encoder",
        "experts.count=4 experts.per_token=2 experts.groups=2 experts.score=sigmoid "
        "experts.correction=true",
    ),
    "relative": ("encoder-decoder", "positions=relative norm=rms gated=true"),
    "summaries": (
        "encoder-decoder",
        "positions=relative norm=rms sliding_window=16 summary_block=16",
    ),
    "relative-sinusoidal": ("streams", "positions=relative-sinusoidal segment_offsets=true"),
}
SHORT = (
    "train.steps={0} train.warmup=1 train.validate_every={0} train.save_every={0} train.log_every=1"
)
# For included recipes: a small vocabulary, small batches, and text that needs no download.
SMALL = "tokenizer.vocab_size=1000 batch.tokens=1024 " + SHORT.format(3)
PHRASES = "data.train=embedded:phrasebook data.field=english data.valid=short.txt " + SMALL
NUMBERS = "data.train=long.txt data.valid=short.txt " + SMALL
# These cases need TRIFOLD_DATA.
ON_DATASETS = {
    "shakespeare-char-tiny": "shakespeare-char-tiny data.holdout=0.01 " + SHORT.format(10),
    "text-to-text": "text-to-text generate.max_new_tokens=2 " + SMALL,
}
TRAINING = {
    "smoke": "smoke " + SHORT.format(20),
    "smoke-workers": "smoke train.workers=2 train.accumulate=2 " + SHORT.format(10),
    "smoke-muon": "smoke train.optimizer=muon train.learning_rate=0.01 train.ema=0.9 "
    + SHORT.format(10),
    "smoke-adafactor": "smoke train.optimizer=adafactor train.recompute=blocks " + SHORT.format(10),
    "smoke-bf16": "smoke train.precision=bfloat16 " + SHORT.format(10),
    "demo": "demo generate.max_new_tokens=2 " + SHORT.format(8),
    "decoder": "decoder.yaml",
    "decoder-window": "decoder.yaml model.positions=rotary model.n_kv_heads=2 model.norm=rms "
    "model.gated=true model.sliding_window=16 model.window_pattern=[local,global]",
    "mlm-plain": "mlm-plain " + PHRASES,
    "denoise": "multi30k-denoise task.written=10 " + PHRASES,
    "permutation": "permutation " + PHRASES,
    "sop": "sop " + NUMBERS,
    "span-corruption": "span-corruption task.written=10 " + NUMBERS,
    **{
        name: " ".join(["tiny.yaml", STACKS[stack], *(f"model.{x}" for x in settings.split())])
        for name, (stack, settings) in PARTS.items()
    },
    "tag": "tiny.yaml task.kind=tag data.train=tags.txt data.valid=tags.txt data.format=conll "
    "model.shape=encoder",
    "embed-ranking": "tiny.yaml task.kind=embed data.train=pairs.tsv data.valid=pairs.tsv "
    "data.columns.label=null model.shape=encoder",
    "embed-cosent": "tiny.yaml task.kind=embed data.train=pairs.tsv data.valid=pairs.tsv "
    "model.shape=encoder model.positions=rotary train.workers=2",
    "images": "tiny.yaml task.kind=images data.train=images-idx3-ubyte "
    "data.valid=images-idx3-ubyte task.augment.crop=1 task.augment.flip=true batch.rows=8 "
    "model.shape=encoder model.image_size=[8,8] model.patch_size=[4,4] model.max_positions=5 "
    "model.n_channels=1 model.stem=[4,8]",
    **ON_DATASETS,
}
# The case whose model is used, and the options of `trifold generate`.
GENERATION = {
    "generate-fp32": ("decoder", ""),
    "generate-bf16": ("decoder", "--dtype bfloat16"),
    "generate-int8": ("decoder", "--dtype bfloat16 --weights int8"),
    "generate-beams": ("decoder", "--num-beams 4 --num-return-sequences 2"),
    "generate-sample": ("decoder", "--temperature 0.9 --top-k 20 --top-p 0.9 --seed 3"),
    "generate-contrastive": ("decoder", "--penalty-alpha 0.6 --top-k 4"),
    "generate-window-step": ("decoder-window", "--batch-size 1 --min-new-tokens 24"),
    "generate-lookup": ("decoder", "--prompt-lookup-num-tokens 3"),
    "translate-greedy": ("demo", "--num-beams 1"),
    "translate-beams": ("demo", "--num-beams 5 --num-return-sequences 3"),
    "translate-bf16": ("demo", "--dtype bfloat16"),
    "translate-int8": ("demo", "--weights int8"),
    **{
        f"generate-{name}": (name, "--temperature 1 --seed 3 --min-new-tokens 24")
        for name, (stack, _) in PARTS.items()
        if stack in ("decoder", "encoder-decoder")
    },
}
PROMPTS = [
    "one hundred and two",
    "seven",
    "I love dogs.",
    "She is sleeping in the garden of the house.",
]


def write_files(folder: Path) -> None:
    """The recipes and data of the cases: random words for numbers, and random pixels."""
    rng, words = random.Random(1), "one two three twenty thirty forty and hundred".split()
    lines = [" ".join(rng.choices(words, k=rng.randrange(50, 80))) for _ in range(14)]
    tagged = [
        [f"{word} {'B-TEN' if word[-1] == 'y' else 'O'}" for word in line.split()] for line in lines
    ]
    pairs = [f"{line[:40]}\t{line[10:50]}\t{rng.random()}" for line in lines]
    for name, text in {
        "decoder.yaml": DECODER,
        "tiny.yaml": TINY,
        "long.txt": "\n".join(lines[:12]),
        "short.txt": "\n".join(lines[12:]),
        "tags.txt": "\n\n".join("\n".join(sentence[:20]) for sentence in tagged),
        "pairs.tsv": "\n".join(["text\tpair\tscore", *pairs]),
    }.items():
        (folder / name).write_text(text + "\n")
    pixels = {"images-idx3-ubyte": (14, 8, 8), "labels-idx1-ubyte": (14,)}
    for name, shape in pixels.items():
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        content = bytes(rng.randrange(3 if len(shape) == 1 else 256) for _ in range(prod(shape)))
        (folder / name).write_bytes(bytes([0, 0, 8, len(shape)]) + sizes + content)
