"""Self-attention whose three projections are one product forwards and backwards.

nn.MultiheadAttention computes them as one product, too. But its backward pass fills three tensors with zeros and adds
them up, and it moves the batch to the second dimension and back: together more work than the attention itself.
"""

from torch import Tensor, nn
from torch.nn import functional


class FastAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention of a sequence with itself, in training; anything else is left to nn.MultiheadAttention."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (B, L, E) for (B, L, E), or (L, B, E) for (L, B, E), and no weights."""
        itself = isinstance(query, Tensor) and query is key is value and query.ndim == 3
        plain = not need_weights and key_padding_mask is None and is_causal == (attn_mask is not None)
        if not itself or not plain or not self.training or query.shape[-1] != self.embed_dim:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        projected = functional.linear(query, self.in_proj_weight, self.in_proj_bias)
        q, k, v = (self._by_head(part) for part in projected.chunk(3, -1))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        out = (out.transpose(1, 2) if self.batch_first else out.permute(2, 0, 1, 3)).flatten(2)
        return functional.linear(out, self.out_proj.weight, self.out_proj.bias), None

    def _by_head(self, x: Tensor) -> Tensor:
        """Return (B, heads, L, d)."""
        heads = x.view(*x.shape[:2], self.num_heads, -1)
        return heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)

    @staticmethod
    def supports(layer: nn.MultiheadAttention) -> bool:
        """Tell whether the layer is one of ours; dropout draws random numbers, which would not be torch's."""
        extras = layer.bias_k is not None or layer.bias_v is not None or layer.add_zero_attn
        return layer._qkv_same_embed_dim and layer.dropout == 0 and not extras
