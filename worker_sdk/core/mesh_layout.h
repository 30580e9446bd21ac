// SPDX-License-Identifier: Apache-2.0
// How a job's ranks are laid out along named axes, as "pp2xdp2xtp2": who shares which part of the
// model with whom (docs/parallel.md). Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

struct MeshAxis {
  std::string name;
  int size = 1;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// Rank numbers count along the last axis first: with pp2 x dp2 x tp2 ranks 0 and 1 are a tp pair.
// Constant after construction.
class MeshLayout {
 public:
  // Outermost axis first. Throws Error(kInvalidArgument): no axis, a size below 1, a name that is
  // empty, used twice or not of the letters a … z and _.
  explicit MeshLayout(std::vector<MeshAxis> axes);

  // "tp2xdp2", in any order, as a user writes it: the axes come in the order of `names` (outermost
  // first), of which those left out have size 1. Throws Error(kInvalidArgument) that says what is
  // wrong with the text.
  static MeshLayout parse(std::string_view text, const std::vector<std::string>& names);

  int size() const { return size_; }  // ranks
  const std::vector<MeshAxis>& axes() const { return axes_; }

  // Throw Error(kInvalidArgument) for an axis that there is not, or a rank.
  int size_of(std::string_view axis) const;
  int coordinate(int rank, std::string_view axis) const;

  // The ranks that differ from `rank` along these axes alone, ascending; `rank` is among them.
  std::vector<int> group_of(int rank, const std::vector<std::string>& axes) const;

  // "pp2xdp2xtp2"; axes of one rank are left out, but not all of them.
  std::string text() const;

 private:
  std::size_t index_of(std::string_view axis) const;
  int stride_of(std::size_t index) const;
  void check_rank(int rank) const;

  std::vector<MeshAxis> axes_;
  int size_ = 1;
};

}  // namespace ddprun
