// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/rank_group.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun {
namespace {

constexpr std::size_t kMostShown = 16;

struct DoneWork final : Work {
  bool is_completed() override { return true; }
  void wait() override {}
};

std::string list(const std::vector<int>& ranks) {
  const auto shown = std::span(ranks).first(std::min(ranks.size(), kMostShown));
  return concat(listed(shown), ranks.size() > kMostShown ? ", …" : "");
}

std::string problem_of(int rank, int size, const std::vector<int>& ranks, const std::string& name) {
  if (name.empty()) return "a group of ranks needs a name";
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) return concat("rank ", *twice, " is twice in it");
  if (!sorted.empty() && sorted.front() < 0) return concat("no rank ", sorted.front());
  if (!sorted.empty() && sorted.back() >= size) {
    return concat("no rank ", sorted.back(), " among ", size);
  }
  if (!std::ranges::binary_search(sorted, rank)) {
    return concat("rank ", rank, ", which asks for it, is not in it");
  }
  return "";
}

}  // namespace

std::string RankGroup::prefix() const {
  if (ranks.empty()) return "";
  const std::vector<int> own = all_ranks(static_cast<int>(ranks.size()));
  return concat("group ", name, " (its ranks ", list(own), " are the job's ", list(ranks), "): ");
}

std::string RankGroup::key(const std::string& parent_prefix, int count) const {
  return concat(split_key(parent_prefix, name, count), ranks.front(), "/");
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string split_key(const std::string& parent_prefix, const std::string& name, int count) {
  return concat(parent_prefix, "split/", name, "/", count, "/");
}

RankGroup make_group(const RankGroup& parent, int rank, int size, const std::vector<int>& ranks,
                     const SplitOptions& options, int* place) {
  const std::string problem = problem_of(rank, size, ranks, options.name);
  if (!problem.empty()) {
    throw_invalid("group ", options.name, " of ranks ", list(ranks), ": ", problem);
  }
  RankGroup group{.name = options.name, .ranks = {}};
  for (const int each : ranks) {
    group.ranks.push_back(parent.ranks.empty() ? each
                                               : parent.ranks[static_cast<std::size_t>(each)]);
  }
  *place = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
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

OperationFacts facts_of(const CollectiveCall& call, std::uint32_t communicator,
                        std::uint64_t sequence) {
  return {.kind = call.kind,
          .op = static_cast<std::uint8_t>(call.op),
          .dtype = static_cast<std::uint8_t>(call.part().dtype),
          .root = has_root(call.kind) || call.is_message() ? call.root : -1,
          .count = call.part().count,
          .communicator = communicator,
          .sequence = sequence};
}

WorkPtr completed_work() {
  static const WorkPtr done = std::make_shared<DoneWork>();
  return done;
}

}  // namespace ddprun
