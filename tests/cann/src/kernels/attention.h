// Scaled dot product attention over canonical views, shared by the aclnn operators and by ATB's paged attention.
#pragma once
#include "kernel.h"

namespace emu {

// Which probabilities are dropped: a mask of bits, 1 keeps, one for each of [B, N, S, T].
struct Dropout {
  Values<int64_t> bytes;
  double keep = 1;
  // The factor of the i-th probability.
  double factor(int64_t i) const {
    if (keep >= 1) return 1;
    return keep > 0 && (bytes[i / 8] >> (i % 8) & 1) ? 1 / keep : 0;
  }
};

enum class Causal { kNone, kLeftUp, kRightDown };

// One sequence: query [N, S, D], key [NK, T, D], value [NK, T, Dv]; N is a multiple of NK.
struct Sequence {
  View query, key, value, out;  // out: [N, S, Dv]
  View mask;                    // [N, S, at least T], nonzero hides; undefined for none
  View lse;                     // [N, S], log of the sum of exponentials; undefined for none
  View softmax_max, softmax_sum;  // [N, S, repeated]; undefined for none
};

struct AttentionOptions {
  double scale = 1;
  Causal causal = Causal::kNone;
  const Dropout* dropout = nullptr;  // none
  int64_t first_probability = 0;     // of this sequence, in the mask
  double keep_factor(int64_t i) const { return dropout ? dropout->factor(first_probability + i) : 1; }
};

void attend(const Sequence& sequence, const AttentionOptions& options);

// A paged cache [blocks, block size, NK, D], in any strides, read through one row of the block table.
// Returns [NK, length, D] in `storage`.
View gather_pages(const View& cache, const View& table_row, int64_t length, Values<float>& storage);

// Writes rows [tokens, NK, D] to the slots of a paged cache; a negative slot is skipped.
void scatter_pages(const View& rows, const View& cache, const View& slots);

}  // namespace emu
