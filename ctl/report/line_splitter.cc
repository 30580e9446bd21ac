// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/line_splitter.h"

#include <algorithm>

namespace ddprun::report {

void LineSplitter::keep(std::string_view part) {
  begun_ += part.substr(0, std::min(part.size(), kMostLineBytes - begun_.size()));
}

void LineSplitter::add(std::string_view piece) {
  while (!piece.empty()) {
    const std::size_t end = piece.find('\n');
    if (end == std::string_view::npos) return keep(piece);
    if (begun_.empty() && end <= kMostLineBytes) {
      take_(piece.substr(0, end));
    } else {
      keep(piece.substr(0, end));
      take_(begun_);
      begun_.clear();
    }
    piece.remove_prefix(end + 1);
  }
}

void LineSplitter::end() {
  if (!begun_.empty()) take_(begun_);
  begun_.clear();
}

}  // namespace ddprun::report
