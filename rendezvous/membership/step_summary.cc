// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/step_summary.h"

#include <algorithm>
#include <cmath>

namespace ddprun::membership {
namespace {

namespace json = boost::json;

struct Part {
  const char* name;
  RankSpread StepSummary::*spread;
  double RankSteps::*of_rank;
};
constexpr Part kParts[] = {
    {"step", &StepSummary::step, &RankSteps::step},
    {"forward", &StepSummary::forward, &RankSteps::forward},
    {"backward", &StepSummary::backward, &RankSteps::backward},
    {"communication", &StepSummary::communication, &RankSteps::communication},
    {"exposed", &StepSummary::exposed, &RankSteps::exposed},
    {"loader", &StepSummary::loader, &RankSteps::loader},
};

double hidden(double exposed, double communication) {
  return communication > 0 ? std::clamp(1 - exposed / communication, 0.0, 1.0) : 0;
}

double mean_of(double mean, int count, double other_mean, int other_count) {
  const double total = static_cast<double>(count) + other_count;
  return mean * (count / total) + other_mean * (other_count / total);
}

double finite(double value) { return std::isfinite(value) ? std::max(0.0, value) : 0; }

json::object spread_object(const RankSpread& spread) {
  json::object out;
  out["mean"] = finite(spread.mean);
  out["worst"] = finite(spread.worst);
  out["rank"] = std::max(-1, spread.worst_rank);
  return out;
}

RankSpread read_spread(const JsonFields& in) {
  return {finite(in.real("mean")), finite(in.real("worst")), in.small("rank", -1, kMaxInt)};
}

}  // namespace

double StepSummary::overlap() const { return hidden(exposed.mean, communication.mean); }

StepSummary summary_of(const RankSteps& rank) {
  StepSummary summary;
  summary.num_ranks = 1;
  for (const Part& part : kParts) {
    const double value = rank.*part.of_rank;
    summary.*part.spread = {value, value, rank.global_rank};
  }
  summary.bytes_per_step = rank.bytes_per_step;
  if (rank.communication > 0) {
    summary.least_overlap = hidden(rank.exposed, rank.communication);
    summary.least_overlap_rank = rank.global_rank;
  }
  return summary;
}

void add(StepSummary& into, const StepSummary& more) {
  if (more.num_ranks <= 0) return;
  if (into.num_ranks <= 0) {
    into = more;
    return;
  }
  const auto mean = [&](double mine, double other) {
    return mean_of(mine, into.num_ranks, other, more.num_ranks);
  };
  const auto replaces = [](int rank, int by, double gain) {
    if (rank < 0 || by < 0) return rank < 0 && by >= 0;
    return gain > 0 || (gain == 0 && by < rank);
  };
  for (const Part& part : kParts) {
    RankSpread& mine = into.*part.spread;
    const RankSpread& other = more.*part.spread;
    mine.mean = mean(mine.mean, other.mean);
    if (!replaces(mine.worst_rank, other.worst_rank, other.worst - mine.worst)) continue;
    mine.worst = other.worst;
    mine.worst_rank = other.worst_rank;
  }
  if (replaces(into.least_overlap_rank, more.least_overlap_rank,
               into.least_overlap - more.least_overlap)) {
    into.least_overlap = more.least_overlap;
    into.least_overlap_rank = more.least_overlap_rank;
  }
  into.bytes_per_step = mean(into.bytes_per_step, more.bytes_per_step);
  into.num_ranks = static_cast<int>(
      std::min<std::int64_t>(kMaxInt, static_cast<std::int64_t>(into.num_ranks) + more.num_ranks));
}

json::object step_summary_object(const StepSummary& summary) {
  json::object out;
  out["ranks"] = std::max(0, summary.num_ranks);
  for (const Part& part : kParts) out[part.name] = spread_object(summary.*part.spread);
  out["bytes_per_step"] = finite(summary.bytes_per_step);
  out["least_overlap"] = finite(summary.least_overlap);
  out["least_overlap_rank"] = std::max(-1, summary.least_overlap_rank);
  return out;
}

StepSummary read_step_summary(const JsonFields& in) {
  StepSummary summary;
  summary.num_ranks = in.small("ranks", 0, kMaxInt);
  for (const Part& part : kParts) summary.*part.spread = read_spread(in.object(part.name));
  summary.bytes_per_step = finite(in.real("bytes_per_step"));
  summary.least_overlap = finite(in.real("least_overlap"));
  summary.least_overlap_rank = in.small("least_overlap_rank", -1, kMaxInt);
  return summary;
}

}  // namespace ddprun::membership
