"""Models of the papers, by name."""

from trifold.nn.variants import ModelConfig

# Vaswani et al. 2017, table 3.
PRESETS: dict[str, ModelConfig] = {
    "transformer-base": ModelConfig(),
    "transformer-big": ModelConfig(d_model=1024, n_heads=16, d_ff=4096, dropout=0.3),
    # Wu et al. 2021 ("Transformer-Tiny" of the Multi30k literature).
    "transformer-tiny": ModelConfig(
        vocab_size=9_700, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3
    ),
}
