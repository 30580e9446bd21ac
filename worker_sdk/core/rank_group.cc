// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/rank_group.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "common/error.h"
#include "common/text.h"

namespace ddprun {
namespace {

constexpr std::size_t kMostShown = 16;

struct DoneWork final : Work {
  bool is_completed() override { return true; }
  void wait() override {}
};

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostShown); ++i) {
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text + (ranks.size() > kMostShown ? ", …" : "");
}

std::string problem_of(int rank, int size, const std::vector<int>& ranks, const std::string& name) {
  if (name.empty()) return "a group of ranks needs a name";
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return concat("rank ", *twice, " is twice in it");
  if (!sorted.empty() && sorted.front() < 0) return concat("no rank ", sorted.front());
  if (!sorted.empty() && sorted.back() >= size) {
    return concat("no rank ", sorted.back(), " among ", size);
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), rank)) {
    return concat("rank ", rank, ", which asks for it, is not in it");
  }
  return "";
}

}  // namespace

std::string RankGroup::prefix() const {
  if (ranks.empty()) return "";
  std::vector<int> own(ranks.size());
  std::iota(own.begin(), own.end(), 0);
  return concat("group ", name, " (its ranks ", list(own), " are the job's ", list(ranks), "): ");
}

std::string RankGroup::key(const std::string& parent_prefix, int count) const {
  return concat(split_key(parent_prefix, name, count), ranks.front(), "/");
}

std::string split_key(const std::string& parent_prefix, const std::string& name, int count) {
  return concat(parent_prefix, "split/", name, "/", count, "/");
}

RankGroup make_group(const RankGroup& parent, int rank, int size, const std::vector<int>& ranks,
                     const SplitOptions& options, int* place) {
  const std::string problem = problem_of(rank, size, ranks, options.name);
  if (!problem.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("group ", options.name, " of ranks ", list(ranks), ": ", problem));
  }
  RankGroup group{.name = options.name, .ranks = {}};
  for (const int each : ranks) {
    group.ranks.push_back(parent.ranks.empty() ? each
                                               : parent.ranks[static_cast<std::size_t>(each)]);
  }
  *place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return group;
}

std::string reduction_problem(DType dtype, ReduceOp op) {
  if (dtype != DType::kBool || op != ReduceOp::kAverage) return "";
  return "there is no average of bool";
}

std::string parts_problem(const TensorView& part, const TensorView& whole, int rank, int size) {
  const auto num_parts = static_cast<std::size_t>(size);
  if (part.dtype != whole.dtype) {
    return concat("the buffers differ in type: ", to_string(part.dtype), " and ",
                  to_string(whole.dtype));
  }
  if (whole.count % num_parts != 0 || whole.count / num_parts != part.count) {
    return concat(whole.count, " elements are not ", size, " times ", part.count);
  }
  const auto* part_begin = static_cast<const char*>(part.data);
  const auto* whole_begin = static_cast<const char*>(whole.data);
  const bool overlap =
      part_begin < whole_begin + whole.size_bytes() && whole_begin < part_begin + part.size_bytes();
  const std::size_t own_offset = static_cast<std::size_t>(rank) * part.size_bytes();
  if (overlap && part_begin != whole_begin + own_offset) {
    return "the buffers overlap, and not at this rank's own part";
  }
  return {};
}

WorkPtr completed_work() {
  static const WorkPtr done = std::make_shared<DoneWork>();
  return done;
}

}  // namespace ddprun
