// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/pair_state.h"

#include <algorithm>
#include <utility>

namespace ddprun::ha {

bool has_term(const TermLine& line, std::string_view id) {
  return std::ranges::find(line, id) != line.end();
}

PairState as_told(PairState own) {
  if (!std::exchange(own.distrusts_disk, false)) return own;
  own.rows = RowsKind::kCopy;
  own.term = {};
  own.line.clear();
  return own;
}

}  // namespace ddprun::ha
