// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/ddp_rules.h"

#include <algorithm>
#include <optional>

#include "common/check.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun {
namespace {

struct Line {
  std::string_view name;
  std::string_view description;
};

// Takes the first line off `text`; returns nullopt at the end.
std::optional<Line> take_line(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(line.size() + 1);
  const std::size_t tab = line.find('\t');
  return Line{.name = line.substr(0, tab), .description = line.substr(tab + 1)};
}

}  // namespace

std::string encode_model(const std::vector<ModelEntry>& entries) {
  std::string text;
  for (const ModelEntry& entry : entries) text += entry.name + '\t' + entry.description + '\n';
  return text;
}

std::string first_model_difference(int rank, std::string_view mine, std::string_view rank_zeros) {
  for (;;) {
    const std::optional<Line> my_line = take_line(mine);
    const std::optional<Line> other = take_line(rank_zeros);
    if (!my_line && !other) return "";
    if (!other) return concat("rank ", rank, " has ", my_line->name, ", which rank 0 has not");
    if (!my_line) return concat("rank ", rank, " lacks ", other->name, ", which rank 0 has");
    if (my_line->name != other->name) {
      return concat("rank ", rank, " has ", my_line->name, " where rank 0 has ", other->name);
    }
    if (my_line->description != other->description) {
      return concat("rank ", rank, ": ", my_line->name, " is ", my_line->description,
                    ", on rank 0 it is ", other->description);
    }
  }
}

JoinRound judge(std::span<const std::uint8_t> calls) {
  JoinRound round;
  int last_active = -1, last_out = 0, local = -1, averaged = -1;
  for (int rank = 0; rank < static_cast<int>(calls.size()); ++rank) {
    const auto call = static_cast<JoinCall>(calls[static_cast<std::size_t>(rank)]);
    if (call == JoinCall::kShadow || call == JoinCall::kRanOut) {
      if (round.first_out < 0) round.first_out = rank;
      if (call == JoinCall::kRanOut) last_out = rank;
      continue;
    }
    ++round.num_active;
    last_active = rank;
    (call == JoinCall::kAveraged ? averaged : local) = rank;
  }
  if (local >= 0 && averaged >= 0) {
    throw_invalid("rank ", averaged, " averages the gradients of this forward, rank ", local,
                  " does not: no_sync must cover the same forwards on all ranks");
  }
  round.averages = averaged >= 0;
  round.source_rank = round.num_active > 0 ? last_active : last_out;
  return round;
}

ParameterUsage::ParameterUsage(UsageMode mode, std::vector<std::string> names)
    : mode_(mode),
      names_(std::move(names)),
      used_(names_.size(), 0),
      counts_(names_.size(), 0),
      last_times_(names_.size(), 0) {}

bool ParameterUsage::on_gradient(std::size_t index) {
  DDPRUN_CHECK(index < names_.size());
  used_[index] = 1;
  ++counts_[index];
  last_times_[index] = ++num_gradients_;
  if (mode_ != UsageMode::kStatic) return true;
  if (!learned_) return false;
  if (counts_[index] > expected_[index]) {
    throw_invalid("the graph has changed: ", names_[index], " got ", counts_[index],
                  " gradients in this iteration and ", expected_[index],
                  " in the first: DdpOptions::static_graph is for models that do the same in "
                  "each iteration; use find_unused_parameters for others");
  }
  return counts_[index] == expected_[index];
}

std::vector<std::size_t> ParameterUsage::learn() {
  DDPRUN_CHECK(learning());
  std::vector<std::size_t> order;
  unused_.clear();
  for (std::size_t index = 0; index < names_.size(); ++index) {
    (counts_[index] > 0 ? order : unused_).push_back(index);
  }
  std::ranges::sort(
      order, [this](std::size_t a, std::size_t b) { return last_times_[a] < last_times_[b]; });
  expected_ = counts_;
  learned_ = true;
  return order;
}

std::string ParameterUsage::advice() const {
  if (mode_ == UsageMode::kStatic) {
    return "the graph has changed, for they got one in the first iteration: "
           "DdpOptions::static_graph is for models that do the same in each iteration; use "
           "find_unused_parameters for others";
  }
  return "every parameter must take part in the loss, or be frozen with requires_grad_(false) "
         "before it is wrapped; or set DdpOptions::find_unused_parameters";
}

void ParameterUsage::end_iteration() {
  if (mode_ == UsageMode::kFindUnused) unused_.clear();
  std::ranges::fill(used_, std::uint8_t{0});
  std::ranges::fill(counts_, std::size_t{0});
  num_gradients_ = 0;
}

}  // namespace ddprun
