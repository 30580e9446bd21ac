// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/messages/reports.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>

namespace ddprun::membership {

namespace {

namespace json = boost::json;

constexpr int kMaxCpus = 1 << 20;
constexpr int kMaxGpuIndex = 4096;
constexpr double kMaxNumber = 1e15;                 // of bytes, segments, watts
constexpr std::size_t kMaxInterfaceNameBytes = 32;  // the kernel allows 15

template <typename Field, typename Fields>
void maybe_real(const char* name, Field& value, double least, double most, Fields& fields) {
  if (fields.wants(name, value)) fields.real(name, *value, least, most);
}

template <typename Field, typename Fields>
void maybe_counter(const char* name, Field& value, Fields& fields) {
  if (fields.wants(name, value)) fields.counter(name, *value);
}

template <typename Self, typename Fields>
void each_of_report(Self& report, Fields& fields) {
  if (fields.wants("cpus", report.num_cpus)) {
    fields.bounded("cpus", *report.num_cpus, 0, kMaxCpus);
  }
  maybe_real("cpu", report.cpu, 0, 1, fields);
  maybe_counter("memory_bytes", report.memory_bytes, fields);
  maybe_counter("memory_used_bytes", report.memory_used_bytes, fields);
  maybe_real("tcp_retransmits_per_second", report.retransmit_rate, 0, kMaxNumber, fields);
  fields.objects("interfaces", report.interfaces, kMaxReportedInterfaces);
  fields.objects("gpus", report.gpus, kMaxReportedGpus);
}

constexpr double kMost = std::numeric_limits<double>::max();

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

template <typename Self, typename Fields>
void each_of_summary(Self& summary, Fields& fields) {
  fields.bounded("ranks", summary.num_ranks, 0, kMaxInt);
  for (const Part& part : kParts) fields.object(part.name, summary.*part.spread);
  fields.real("bytes_per_step", summary.bytes_per_step, 0, kMost);
  fields.real("least_overlap", summary.least_overlap, 0, kMost);
  fields.bounded("least_overlap_rank", summary.least_overlap_rank, -1, kMaxInt);
}

}  // namespace

template <MaybeConst<InterfaceReport> Self, typename Fields>
void each_json(Self& report, Fields& fields) {
  fields.line("name", report.name, kMaxInterfaceNameBytes);
  fields.real("received_bytes_per_second", report.received_rate, 0, kMaxNumber);
  fields.real("sent_bytes_per_second", report.sent_rate, 0, kMaxNumber);
}

template <MaybeConst<GpuReport> Self, typename Fields>
void each_json(Self& report, Fields& fields) {
  fields.bounded("gpu", report.index, 0, kMaxGpuIndex);
  maybe_real("use", report.use, 0, 1, fields);
  maybe_counter("memory_bytes", report.memory_bytes, fields);
  maybe_counter("memory_used_bytes", report.memory_used_bytes, fields);
  maybe_real("watts", report.watts, 0, kMaxNumber, fields);
  maybe_real("celsius", report.celsius, -kMaxNumber, kMaxNumber, fields);
}

void each_json(const NodeReport& report, JsonWriter& fields) { each_of_report(report, fields); }
void each_json(NodeReport& report, JsonReader& fields) { each_of_report(report, fields); }

json::object shown_node_report(const NodeReport& report) {
  const auto complete = [](json::object& object, std::initializer_list<const char*> names) {
    for (const char* name : names) object.emplace(name, nullptr);
  };
  json::object object = json_of(report);
  double received = 0, sent = 0;
  for (const InterfaceReport& each : report.interfaces) {
    received += each.received_rate;
    sent += each.sent_rate;
  }
  if (!report.interfaces.empty()) {
    object["received_bytes_per_second"] = received;
    object["sent_bytes_per_second"] = sent;
  }
  complete(object, {"cpus", "cpu", "memory_bytes", "memory_used_bytes", "received_bytes_per_second",
                    "sent_bytes_per_second", "tcp_retransmits_per_second"});
  for (json::value& gpu : object.at("gpus").as_array()) {
    complete(gpu.as_object(), {"use", "memory_bytes", "memory_used_bytes", "watts", "celsius"});
  }
  return object;
}

template <MaybeConst<RankSpread> Self, typename Fields>
void each_json(Self& spread, Fields& fields) {
  fields.real("mean", spread.mean, 0, kMost);
  fields.real("worst", spread.worst, 0, kMost);
  fields.bounded("rank", spread.worst_rank, -1, kMaxInt);
}

void each_json(const StepSummary& summary, JsonWriter& fields) { each_of_summary(summary, fields); }
void each_json(StepSummary& summary, JsonReader& fields) { each_of_summary(summary, fields); }

void add_gpu_peak(TrainingStatus& status, std::uint64_t peak_bytes, int global_rank) {
  if (peak_bytes <= status.gpu_peak_bytes) return;
  status.gpu_peak_bytes = peak_bytes;
  status.gpu_peak_rank = global_rank;
}

void add_framework(std::string& all, const std::string& more) {
  constexpr std::string_view kBetween = "; ";
  for (std::string_view rest = more; !rest.empty();) {
    const auto end = std::min(rest.find(kBetween), rest.size());
    const std::string_view each = rest.substr(0, end);
    rest.remove_prefix(std::min(end + kBetween.size(), rest.size()));
    if (all.find(each) != std::string::npos) continue;
    if (all.size() + kBetween.size() + each.size() > kMaxFrameworkBytes) continue;
    if (!all.empty()) all += kBetween;
    all += each;
  }
}

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

}  // namespace ddprun::membership
