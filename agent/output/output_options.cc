// SPDX-License-Identifier: Apache-2.0
#include "agent/output/output_options.h"

#include <algorithm>
#include <limits>

#include "agent/output/line_prefix.h"
#include "common/parsed_number.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

constexpr int kMaxRank = 1 << 20;

std::optional<StreamSet> parse_streams(std::string_view text) {
  const auto bits = number_within(text, 0, 3);
  if (!bits || text.size() != 1) return std::nullopt;
  return StreamSet{(*bits & 1) != 0, (*bits & 2) != 0};
}

// Calls `take` with each part of `text` between commas. Stops when it returns false, and returns
// that.
template <typename Take>
bool for_each_part(std::string_view text, Take take) {
  const auto parts = parts_between(text, ',');
  return std::all_of(parts.begin(), parts.end(), take);
}

bool is_shown(const OutputOptions& options, int local_rank, int global_rank) {
  if (!options.local_ranks.empty() && !options.local_ranks.has(local_rank)) return false;
  return options.ranks.empty() || global_rank < 0 || options.ranks.has(global_rank);
}

// Plans a stream that is neither redirected nor tee'd.
StreamPlan plan_plain(const OutputOptions& options, const OutputScene& scene, OutputStream stream) {
  StreamPlan plan;
  const bool is_err = stream == OutputStream::kStderr;
  const bool is_prefixed = scene.several_workers || !options.prefix_template.value_or("").empty();
  if (is_prefixed && !options.inherit) {
    plan.console = ConsoleWay::kLines;
    plan.prefix_template = options.prefix_template.value_or(LinePrefix::kRankTemplate);
  } else if (is_err ? scene.stderr_is_terminal : !scene.same_file || scene.stdout_is_terminal) {
    plan.console = ConsoleWay::kInherit;
  } else {
    // Stderr is read for the last lines in a failure report, and stdout where it is the same file.
    plan.console = scene.several_workers ? ConsoleWay::kLines : ConsoleWay::kRaw;
  }
  return plan;
}

StreamPlan plan_stream(const OutputOptions& options, const OutputScene& scene, int local_rank,
                       int global_rank, OutputStream stream) {
  const bool means_files = options.log_dir != "/dev/null";
  const bool tee = means_files && options.tee.of(local_rank).has(stream);
  const bool to_file = scene.has_files && (tee || options.redirects.of(local_rank).has(stream));
  const bool shown = is_shown(options, local_rank, global_rank) && (tee || !to_file);
  StreamPlan plan;
  if (shown && tee) {
    plan.console = ConsoleWay::kLines;
    plan.prefix_template = options.prefix_template.value_or(LinePrefix::kTeeTemplate);
    plan.filtered = scene.has_files && !options.filters(stream).empty();
  } else if (shown) {
    plan = plan_plain(options, scene, stream);
  } else if (!to_file && stream == OutputStream::kStderr) {
    plan.console = ConsoleWay::kTail;
  }
  if (to_file) {
    const bool by_itself =
        plan.console == ConsoleWay::kNone && options.log_max_bytes == 0 && global_rank >= 0;
    plan.file = by_itself ? FileWay::kDirect : FileWay::kCopied;
  }
  return plan;
}

}  // namespace

StreamSet StreamSpec::of(int local_rank) const {
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? all : found->second;
}

bool StreamSpec::empty() const {
  const auto is_none = [](const auto& entry) { return entry.second == StreamSet{}; };
  return all == StreamSet{} && std::all_of(by_local_rank.begin(), by_local_rank.end(), is_none);
}

std::string parse_stream_spec(std::string_view text, StreamSpec& to) {
  StreamSpec spec;
  if (const auto all = parse_streams(text)) {
    spec.all = *all;
    to = std::move(spec);
    return {};
  }
  const bool is_good = for_each_part(text, [&](std::string_view part) {
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) return false;
    const auto local_rank = number_within(part.substr(0, colon), 0, kMaxRank);
    const auto streams = parse_streams(part.substr(colon + 1));
    if (!local_rank || !streams) return false;
    spec.by_local_rank[*local_rank] = *streams;
    return true;
  });
  if (!is_good) {
    return "wants 0, 1 (stdout), 2 (stderr) or 3 (both), or one of them for each local rank: "
           "0:3,1:2";
  }
  to = std::move(spec);
  return {};
}

bool RankSet::has(int rank) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [rank](const auto& range) {
    return rank >= range.first && rank <= range.second;
  });
}

int RankSet::largest() const {
  int largest = -1;
  for (const auto& [first, last] : ranges_) largest = std::max(largest, last);
  return largest;
}

std::string parse_rank_set(std::string_view text, RankSet& to) {
  RankSet ranks;
  const bool is_good = text.empty() || for_each_part(text, [&](std::string_view part) {
                         while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
                         while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
                         const std::size_t dash = part.find('-');
                         const auto first = number_within(part.substr(0, dash), 0, kMaxRank);
                         const auto last = dash == std::string_view::npos
                                               ? first
                                               : number_within(part.substr(dash + 1), 0, kMaxRank);
                         if (!first || !last || *last < *first) return false;
                         ranks.add(*first, *last);
                         return true;
                       });
  if (!is_good) return "wants ranks, separated by commas: 0,3,8-15";
  to = std::move(ranks);
  return {};
}

std::vector<std::string> parse_line_filters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += ',';
      ++i;
    } else {
      filters.emplace_back();
    }
  }
  std::erase_if(filters, [](const std::string& filter) { return filter.empty(); });
  return filters;
}

std::string parse_size(std::string_view text, std::uint64_t& to) {
  std::string_view unit = text;
  const auto value = take_number<std::uint64_t>(unit);
  int shift = 0;
  if (!unit.empty()) {
    const std::size_t letter = std::string_view("KMGT").find(unit.front() & ~0x20);
    shift = letter == std::string_view::npos ? -1 : 10 * static_cast<int>(letter + 1);
    unit.remove_prefix(1);
  }
  const bool is_good = value && shift >= 0 &&
                       (unit.empty() || (shift > 0 && (unit == "B" || unit == "iB"))) &&
                       *value <= (std::numeric_limits<std::uint64_t>::max() >> 1 >> shift);
  if (!is_good) return "is no size: 65536, 64K, 100M, 2G";
  to = *value << shift;
  return {};
}

bool StreamPlan::is_read() const {
  return file == FileWay::kCopied ||
         (console != ConsoleWay::kNone && console != ConsoleWay::kInherit);
}

WorkerPlan plan_output(const OutputOptions& options, const OutputScene& scene, int local_rank,
                       int global_rank) {
  WorkerPlan plan;
  plan.out = plan_stream(options, scene, local_rank, global_rank, OutputStream::kStdout);
  plan.err = plan_stream(options, scene, local_rank, global_rank, OutputStream::kStderr);
  plan.one_pipe = scene.same_file && plan.out == plan.err && plan.out.is_read() &&
                  plan.out.file == FileWay::kNone && !plan.out.filtered;
  return plan;
}

bool LineFilter::matches(std::string_view text) const {
  return std::any_of(texts_.begin(), texts_.end(), [text](const std::string& part) {
    return text.find(part) != std::string_view::npos;
  });
}

void LineFilter::hold(std::string_view bytes) {
  held_.append(bytes.substr(0, kMaxLineBytes - std::min(held_.size(), kMaxLineBytes)));
}

void LineFilter::feed(std::string_view bytes, std::string_view prefix, std::string& to) {
  std::size_t newline = bytes.find('\n');
  if (newline == std::string_view::npos) return hold(bytes);
  if (!held_.empty()) {
    hold(bytes.substr(0, newline));
    end(prefix, to);
    bytes.remove_prefix(newline + 1);
  }
  const std::size_t last = bytes.rfind('\n');
  const std::size_t whole = last == std::string_view::npos ? 0 : last + 1;
  // Usually nothing matches. Then no line needs to be looked at.
  std::string_view lines = bytes.substr(0, whole);
  if (!matches(lines)) lines = {};
  while (!lines.empty()) {
    newline = lines.find('\n');
    const std::string_view line = lines.substr(0, newline);
    if (matches(line)) to.append(prefix).append(line.substr(0, kMaxLineBytes)) += '\n';
    lines.remove_prefix(newline + 1);
  }
  hold(bytes.substr(whole));
}

void LineFilter::end(std::string_view prefix, std::string& to) {
  if (matches(held_)) to.append(prefix).append(held_) += '\n';
  held_.clear();
}

}  // namespace ddprun::agent
