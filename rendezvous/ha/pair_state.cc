// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/pair_state.h"

#include <algorithm>

namespace ddprun::ha {

bool has_term(const TermLine& line, std::string_view id) {
  return std::ranges::find(line, id) != line.end();
}

}  // namespace ddprun::ha
