// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/hang_verdict.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "common/exit_codes.h"
#include "common/operation_facts.h"
#include "common/text.h"

namespace ddprun::membership {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kOfCommunicator = " of communicator ";  // part of RankReport::operation
constexpr std::size_t kMaxNamedGroups = 4;
constexpr std::size_t kMaxNamedRanks = 6;
constexpr std::size_t kMostSilentNodes = 8;  // the text goes to every node
constexpr std::size_t kMaxFailureLines = 20;
constexpr milliseconds kLeastPause{300};  // each node looks every 100 ms
constexpr milliseconds kLeastAtTheEnd = std::chrono::minutes(30);

std::string tenths_text(milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000);
  return text;
}

std::string name_of(const InspectedRank& rank) {
  return concat("rank ", rank.report.global_rank, " (node ", rank.node_rank, ", ", rank.host,
                ", pid ", rank.report.pid, ")");
}

// Returns "in all_reduce #8812 (step 1101)".
std::string whereabouts(const RankReport& report) {
  std::string text = "in " + place_of(report);
  if (!report.foreign && report.step > 0) text += concat(" (step ", report.step, ")");
  return text;
}

// Returns "7 ranks in all_reduce #8812 (step 1101), ranks 1, 2 in …" without the outlier, the
// largest group first.
std::string others_text(const Inspected& inspected, std::optional<std::size_t> outlier) {
  std::map<std::string, std::vector<int>> groups;
  for (std::size_t i = 0; i < inspected.ranks.size(); ++i) {
    const RankReport& report = inspected.ranks[i].report;
    if (i != outlier) groups[whereabouts(report)].push_back(report.global_rank);
  }
  std::vector<std::pair<std::string, std::vector<int>>> sorted(groups.begin(), groups.end());
  std::ranges::stable_sort(
      sorted, [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::string text;
  std::size_t named = 0;
  for (const auto& [place, ranks] : sorted) {
    if (named++ == kMaxNamedGroups) {
      text += concat(", and ", sorted.size() - kMaxNamedGroups, " other places");
      break;
    }
    if (!text.empty()) text += ", ";
    if (ranks.size() == 1) {
      text += concat("rank ", ranks[0], " ", place);
    } else if (ranks.size() <= kMaxNamedRanks && sorted.size() > 1) {
      text += concat("ranks ", listed(ranks), " ", place);
    } else {
      text += concat(ranks.size(), " ranks ", place);
    }
  }
  return text;
}

// Counts the ranks and names the nodes that were not seen: they could be the cause, too.
std::string unseen_text(const Inspected& inspected) {
  std::string text;
  const int finished = inspected.num_finished;
  const auto unseen = inspected.world_size - finished - static_cast<int>(inspected.ranks.size());
  if (finished > 0) {
    text += concat("; ", finished, " of ", inspected.world_size, " ranks have finished");
  }
  if (unseen > 0) text += concat("; ", unseen, " of ", inspected.world_size, " ranks not seen");
  const auto& silent = inspected.silent_nodes;
  if (!silent.empty()) text += "; no answer from " + first_listed(silent, kMostSilentNodes);
  return text;
}

// Returns the operation in which most others are: "rank 3 never came to all_reduce #127 (25.0 MiB
// float32, sum) of communicator 0; ranks 0–2 wait in it for 30.1 s". Empty: no rank is in another
// operation than `outlier`, or operations aren't recorded.
std::string missing_from(const Inspected& inspected, std::size_t outlier) {
  struct Waiters {
    std::vector<int> ranks;
    std::chrono::milliseconds longest{0};
  };
  std::map<std::string, Waiters> operations;
  for (std::size_t i = 0; i < inspected.ranks.size(); ++i) {
    const RankReport& report = inspected.ranks[i].report;
    if (i == outlier || report.operation.empty()) continue;
    Waiters& waiting = operations[report.operation];
    waiting.ranks.push_back(report.global_rank);
    waiting.longest = std::max(waiting.longest, report.operation_time);
  }
  const RankReport& report = inspected.ranks.at(outlier).report;
  operations.erase(report.operation);
  if (operations.empty()) return "";
  auto& [operation, waiting] = *std::ranges::max_element(
      operations,
      [](const auto& a, const auto& b) { return a.second.ranks.size() < b.second.ranks.size(); });
  std::ranges::sort(waiting.ranks);
  const std::string instead = report.operation.empty() ? "" : ": it is in " + report.operation;
  return concat("rank ", report.global_rank, " never came to ", operation, instead, "; ",
                ranks_text(waiting.ranks), waiting.ranks.size() == 1 ? " waits" : " wait",
                " in it for ", tenths_text(waiting.longest));
}

struct Choice {
  // The rank whose time counts: the outlier, else the rank that has been quiet the longest.
  std::size_t suspect = 0;
  std::optional<std::size_t> outlier;
  bool waits_for_nobody = false;  // all ranks wait in collectives or, by their stacks, for others
};

// Functions of process groups and their stores, in which a rank waits for other ranks. Those of the
// second list must begin a symbol: a script's name may contain them, too.
constexpr std::string_view kRankWaits[] = {"c10d::", "gloo::", "distributed_c10d.py"};
constexpr std::string_view kRankWaitsAtBegin[] = {"nccl", "pnccl", "MPI_", "PMPI_"};
// Calls in which a rank waits for its device. The device may run NCCL's operations or the rank's
// own work.
constexpr std::string_view kDeviceWaits[] = {
    "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy",
    "cuStreamSynchronize",   "cuEventSynchronize",   "cuCtxSynchronize"};

bool has_any(std::string_view frame, std::span<const std::string_view> names) {
  return std::ranges::any_of(names,
                             [&](std::string_view name) { return frame.find(name) != frame.npos; });
}

bool waits_for_ranks(std::string_view frame) {
  const auto begins = [&](std::string_view name) { return frame.starts_with(name); };
  return has_any(frame, kRankWaits) || std::ranges::any_of(kRankWaitsAtBegin, begins);
}

bool waits_for_device(std::string_view frame) { return has_any(frame, kDeviceWaits); }

// Calls that wait for what a person types or another program sends.
constexpr std::string_view kInputs[] = {"read() of stdin", "read() of /dev/tty",
                                        "read() of /dev/pts/"};
constexpr std::string_view kPromptFrames[] = {"PyOS_Readline"};
// Parts of the frames of Python's debuggers pdb and debugpy.
constexpr std::string_view kDebuggerFrames[] = {"(pdb.py:", "(debugpy/", "pydevd"};

bool has_frame_of(const RankReport& report, std::span<const std::string_view> names) {
  return std::ranges::any_of(report.frames,
                             [&](std::string_view frame) { return has_any(frame, names); });
}

// Returns how somebody holds the rank: "is stopped (state T)". Empty: nobody does. A rank with a
// debugger that waits for other ranks runs: its debugger doesn't hold it.
std::string hold_on(const RankReport& report) {
  if (report.activity == RankActivity::kStopped) {
    return concat("is stopped (state ", report.state, ")");
  }
  const auto waits_in = [&](std::string_view call) { return report.call.starts_with(call); };
  if (std::ranges::any_of(kInputs, waits_in) || has_frame_of(report, kPromptFrames)) {
    return report.call.empty() ? "waits for input" : concat("waits for input (", report.call, ")");
  }
  // With NCCL a rank waits for others by waiting for its device.
  const bool waits = report.in_collective() ||
                     std::ranges::any_of(report.frames, waits_for_ranks) ||
                     has_frame_of(report, kDeviceWaits);
  const bool has_debugger = report.has_debugger || has_frame_of(report, kDebuggerFrames);
  return has_debugger && !waits ? "is in a debugger" : "";
}

// Returns the innermost frame in which a foreign rank waits for ranks, else for its device; null:
// none. A rank that trains waits for its device most of the time, too, but it reads data meanwhile.
// So a wait for the device counts only for a rank that moves no data.
const std::string* wait_in_stack(const RankReport& report) {
  if (!report.foreign) return nullptr;
  auto found = std::ranges::find_if(report.frames, waits_for_ranks);
  if (found == report.frames.end() && report.unmoved >= std::min(report.limit, kWaitedForLimit)) {
    found = std::ranges::find_if(report.frames, waits_for_device);
  }
  return found == report.frames.end() ? nullptr : &*found;
}

// Returns whether stacks prove that ranks of a job without progress pages wait for others. Either
// some wait and some don't, or all wait, at least one for ranks. A missing stack proves nothing.
bool stacks_prove_a_wait(const std::vector<InspectedRank>& ranks) {
  bool some_wait = false, some_do_not = false, some_wait_for_ranks = false;
  for (const InspectedRank& rank : ranks) {
    if (!rank.report.foreign || rank.report.frames.empty()) return false;
    (wait_in_stack(rank.report) != nullptr ? some_wait : some_do_not) = true;
    some_wait_for_ranks |= std::ranges::any_of(rank.report.frames, waits_for_ranks);
  }
  return ranks.size() > 1 && some_wait && (some_do_not || some_wait_for_ranks);
}

bool waits_for_others(const RankReport& report, bool is_proven) {
  return report.in_collective() || (is_proven && wait_in_stack(report) != nullptr);
}

// Returns the longest quiet time of the ranks that wait for others.
milliseconds longest_wait(const std::vector<InspectedRank>& ranks) {
  milliseconds wait{0};
  for (const InspectedRank& rank : ranks) {
    if (wait_in_stack(rank.report) != nullptr) wait = std::max(wait, rank.report.quiet);
  }
  return wait;
}

// Returns the quiet time after which a rank counts as stalled. If stacks prove a wait, a foreign
// rank is reported earlier.
milliseconds limit_of(const RankReport& report, bool is_proven) {
  return report.foreign && is_proven ? std::min(report.limit, kWaitedForLimit) : report.limit;
}

// Returns the ranks of `from` with the least value; empty if all have the same.
template <typename Value>
std::vector<std::size_t> behind(const std::vector<std::size_t>& from, Value value) {
  auto least = value(from.front());
  for (const std::size_t i : from) least = std::min(least, value(i));
  std::vector<std::size_t> result;
  for (const std::size_t i : from) {
    if (value(i) == least) result.push_back(i);
  }
  if (result.size() == from.size()) result.clear();
  return result;
}

// Returns the rank of `from` that has been quiet the longest.
std::size_t longest(const std::vector<InspectedRank>& ranks, const std::vector<std::size_t>& from) {
  return *std::ranges::max_element(from, [&](std::size_t a, std::size_t b) {
    return ranks[a].report.quiet < ranks[b].report.quiet;
  });
}

// For ranks outside collectives. Returns those in a place where few are, else the few that have
// been quiet for their limit. Empty: no small group differs.
std::vector<std::size_t> few_in_a_place(const std::vector<InspectedRank>& ranks,
                                        const std::vector<std::size_t>& all) {
  std::map<std::string, std::vector<std::size_t>> groups;
  std::vector<std::size_t> stalled;
  for (const std::size_t i : all) {
    groups[place_of(ranks[i].report)].push_back(i);
    if (ranks[i].report.quiet >= ranks[i].report.limit) stalled.push_back(i);
  }
  const auto smallest = std::ranges::min_element(
      groups, [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (groups.size() > 1 && smallest->second.size() * 2 < all.size()) return smallest->second;
  if (!stalled.empty() && stalled.size() * 2 <= all.size()) return stalled;
  return {};
}

// Chooses the outlier, if there is one, and the suspect. `ranks` must not be empty.
Choice choose_outlier(const std::vector<InspectedRank>& ranks, bool someone_is_silent,
                      bool is_proven) {
  const auto report = [&](std::size_t i) -> const RankReport& { return ranks[i].report; };
  std::vector<std::size_t> held, all, outside;  // all: those with a page, if any
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    // At a prompt or with a debugger a rank may still go on within its limit.
    const bool is_late = report(i).activity == RankActivity::kStopped ||
                         report(i).quiet >= limit_of(report(i), is_proven);
    if (is_late && !hold_on(report(i)).empty()) held.push_back(i);
    if (!report(i).foreign) all.push_back(i);
  }
  const auto names = [&](const std::vector<std::size_t>& from, bool waits_for_nobody = false) {
    const std::size_t suspect = longest(ranks, from);
    return Choice{suspect, suspect, waits_for_nobody};
  };
  if (!held.empty()) return names(held);  // it goes on when somebody lets it
  const bool foreign = all.empty();
  for (std::size_t i = 0; foreign && i < ranks.size(); ++i) all.push_back(i);
  for (const std::size_t i : all) {
    if (!waits_for_others(report(i), is_proven)) outside.push_back(i);
  }
  const bool inside = outside.empty();
  const bool is_alone = all.size() == 1 && !someone_is_silent;
  if (is_alone) return names(all, inside);
  // Point-to-point messages aren't collectives of all ranks: each stage of a pipeline, and a
  // gather's root, has its own number of them. If not every rank counts them apart, only the last
  // operation shows whether there are messages.
  const bool told_apart = std::ranges::all_of(
      all, [&](std::size_t i) { return report(i).shared_collectives_done.has_value(); });
  const bool has_messages = std::ranges::any_of(all, [&](std::size_t i) {
    return report(i).collective == "send" || report(i).collective == "recv";
  });
  const auto begun = [&](std::size_t i) {
    if (told_apart) return *report(i).shared_collectives_done;
    return has_messages ? 0 : report(i).collectives_begun;
  };
  if (inside) {  // if a node is silent, all may wait for it
    const auto late = someone_is_silent ? std::vector<std::size_t>() : behind(all, begun);
    if (!late.empty()) return names(late, true);
    return {longest(ranks, all), std::nullopt, true};
  }
  if (outside.size() < all.size()) return names(outside);
  const auto steps = [&](std::size_t i) { return std::max(report(i).step, report(i).steps_done); };
  if (!foreign) {
    for (const auto& late : {behind(all, begun), behind(all, steps)}) {
      if (!late.empty() && late.size() * 2 <= all.size()) return names(late);
    }
  }
  const auto few = few_in_a_place(ranks, all);
  if (!few.empty()) return names(few);
  return {longest(ranks, all), std::nullopt, false};
}

std::vector<std::string> evidence(const InspectedRank& rank) {
  const RankReport& report = rank.report;
  std::vector<std::string> lines;
  std::string first = concat("state ", report.state, ", ", report.cpu_percent, " % CPU");
  if (!report.work.empty()) first += ", " + report.work;
  if (!report.wchan.empty()) first += ", wchan " + report.wchan;
  if (!report.call.empty()) first += ", " + report.call;
  lines.push_back(std::move(first));
  if (!report.note.empty()) lines.push_back("  (" + report.note + ")");
  for (const std::string& frame : report.frames) lines.push_back("  " + frame);
  return lines;
}

// Returns a rank other than the suspect that works outside a collective, within its limit. The
// suspect may be waiting for it in some way. nullopt: there is none.
std::optional<std::size_t> other_that_works(const std::vector<InspectedRank>& ranks,
                                            std::size_t suspect, bool is_proven) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankReport& report = ranks[i].report;
    const bool may = !report.limit_if_working || report.quiet < *report.limit_if_working;
    const bool counts = report.foreign == ranks[suspect].report.foreign;
    if (i != suspect && counts && may && report.activity == RankActivity::kWorks &&
        !waits_for_others(report, is_proven)) {
      return i;
    }
  }
  return std::nullopt;
}

// Returns the quiet time after which the job may react to a blocked suspect. If some ranks have
// ended, the others may be at the job's end, e.g. in a last upload. If nodes are silent, the
// suspect may wait for one of their ranks.
milliseconds limit_if_blocked(const RankReport& report, const Inspected& inspected) {
  const milliseconds limit = std::max(report.limit, report.limit_if_blocked);
  const bool is_learnt = limit > report.limit;
  const bool is_the_end = is_learnt && inspected.num_finished > 0;
  return is_the_end || !inspected.silent_nodes.empty() ? std::max(limit, kLeastAtTheEnd) : limit;
}

milliseconds pause_until(milliseconds quiet, milliseconds limit) {
  return std::max(kLeastPause, limit - quiet);
}

// Returns the time until all of these blocked ranks have been quiet for their limits. nullopt: a
// rank isn't blocked, or all have reached their limits.
std::optional<milliseconds> until_all_stalled(const std::vector<InspectedRank>& ranks) {
  milliseconds left{0};
  for (const InspectedRank& rank : ranks) {
    if (rank.report.activity != RankActivity::kBlocked) return std::nullopt;
    left = std::max(left, rank.report.limit - rank.report.quiet);
  }
  if (left.count() <= 0) return std::nullopt;
  return std::max(left, kLeastPause);
}

// Returns the time until the first foreign rank that was reported early reaches its own limit;
// nullopt: there is none.
std::optional<milliseconds> until_limit(const std::vector<InspectedRank>& ranks) {
  std::optional<milliseconds> least;
  for (const InspectedRank& rank : ranks) {
    const RankReport& report = rank.report;
    if (!report.foreign || report.quiet < kWaitedForLimit || report.quiet >= report.limit) continue;
    const milliseconds left = std::max(report.limit - report.quiet, kLeastPause);
    least = std::min(least.value_or(left), left);
  }
  return least;
}

// Returns the time until the suspect has been quiet for its limit or, without an outlier, until
// every rank has. nullopt: that has happened already.
std::optional<milliseconds> time_left(const Inspected& inspected, const Choice& choice,
                                      bool is_proven) {
  const auto& ranks = inspected.ranks;
  const RankReport& suspect = ranks[choice.suspect].report;
  milliseconds left = limit_of(suspect, is_proven) - suspect.quiet;
  if (is_proven && choice.outlier) {
    // A rank that computes, but moves no data while others wait for it, reaches its limit, too.
    left = std::min(left,
                    limit_of(suspect, is_proven) - std::min(suspect.unmoved, longest_wait(ranks)));
  }
  for (const InspectedRank& rank : ranks) {
    const bool counts = !choice.outlier && !choice.waits_for_nobody &&
                        rank.report.foreign == suspect.foreign &&
                        !waits_for_others(rank.report, is_proven);
    if (counts) left = std::max(left, limit_of(rank.report, is_proven) - rank.report.quiet);
  }
  if (left.count() <= 0) return std::nullopt;
  return left;
}

// Returns "all_reduce #127" for "all_reduce #127 (25.0 MiB float32, sum) of communicator 0". The
// number counts this communicator's operations. A count over all communicators differs between
// ranks if one has had messages.
std::string without_size(const std::string& operation) {
  const std::size_t of = operation.rfind(kOfCommunicator);
  std::string text = operation.substr(0, std::min(operation.find(" ("), of));
  if (of == std::string::npos) return text;
  const std::string number = operation.substr(of + kOfCommunicator.size());
  return number == "0" ? text : concat(text, kOfCommunicator, number);
}

}  // namespace

std::string place_of(const RankReport& report) {
  if (report.in_collective()) {
    if (!report.operation.empty()) return without_size(report.operation);
    return concat(report.collective.empty() ? "collective" : report.collective, " #",
                  report.collectives_begun);
  }
  if (const std::string* wait = wait_in_stack(report)) return *wait;
  if (!report.foreign && report.phase != "train" && !report.phase.empty()) {
    const std::string inside = report.call.empty() ? "" : ", " + report.call;
    return report.phase + inside;
  }
  if (!report.call.empty()) return report.call;
  if (!report.frames.empty()) return report.frames.front();
  return report.activity == RankActivity::kWorks ? "its own code" : "an unknown place";
}

HangFinding compare_ranks(const Inspected& inspected) {
  HangFinding finding;
  const auto& ranks = inspected.ranks;
  const bool has_pages =
      std::ranges::any_of(ranks, [](const auto& rank) { return !rank.report.foreign; });
  const bool is_proven = stacks_prove_a_wait(ranks);
  const bool stalled = std::ranges::any_of(ranks, [&](const InspectedRank& rank) {
    if (rank.report.activity == RankActivity::kStopped) return true;
    return rank.report.quiet >= limit_of(rank.report, is_proven) &&
           !(has_pages && rank.report.foreign);
  });
  if (!stalled) {
    finding.again_in = until_limit(ranks);
    finding.text = concat(finding.again_in ? "no hang: no stack shows that others wait for a rank"
                                           : "no hang: every rank makes progress again",
                          unseen_text(inspected));
    return finding;
  }
  const Choice choice = choose_outlier(ranks, !inspected.silent_nodes.empty(), is_proven);
  finding.outlier = choice.outlier;
  const auto& suspect = ranks[choice.suspect];
  const RankReport& report = suspect.report;
  // The outlier still computes, but the others wait for it.
  const bool is_waited_for =
      is_proven && choice.outlier && report.quiet < limit_of(report, is_proven);
  finding.quiet = is_waited_for ? std::max(report.quiet, longest_wait(ranks)) : report.quiet;
  const int num_seen = static_cast<int>(ranks.size()) + inspected.num_finished;
  finding.everyone_blocked =
      num_seen >= inspected.world_size &&
      std::ranges::all_of(ranks, [is_proven](const InspectedRank& rank) {
        const RankReport& each = rank.report;
        return (is_proven && each.unmoved >= each.limit && wait_in_stack(each) != nullptr) ||
               (each.activity == RankActivity::kBlocked && each.quiet >= each.limit);
      });
  const std::string others = others_text(inspected, choice.outlier);
  const std::string sentence = !choice.outlier ? concat(others, " for ", tenths_text(finding.quiet))
                                               : concat(name_of(suspect), " ", whereabouts(report),
                                                        " for ", tenths_text(finding.quiet));
  const bool tells_others = choice.outlier && !others.empty();
  const std::string rest =
      concat(tells_others ? "; others: " + others : "", unseen_text(inspected));
  finding.lines = evidence(suspect);
  if (!choice.outlier) finding.lines.insert(finding.lines.begin(), "of " + name_of(suspect) + ":");
  if (choice.outlier) finding.operation = missing_from(inspected, *choice.outlier);
  if (!finding.operation.empty()) finding.lines.insert(finding.lines.begin(), finding.operation);

  const auto other = other_that_works(ranks, choice.suspect, is_proven);
  const bool works =
      is_waited_for || (!choice.waits_for_nobody && report.activity == RankActivity::kWorks);
  const std::string hold = hold_on(report);
  const bool is_stopped = report.activity == RankActivity::kStopped;
  const auto left = is_stopped ? std::nullopt : time_left(inspected, choice, is_proven);
  if (left) {
    finding.text = concat("no hang: ", sentence, ", and may take ",
                          tenths_text(finding.quiet + *left), " (phase ", report.phase, ")", rest);
    finding.again_in = std::max(kLeastPause, *left);
  } else if (!hold.empty()) {
    finding.kind = HangKind::kStopped;
    finding.text =
        concat(name_of(suspect), " ", hold, ", not hung",
               others.empty() ? "" : "; the others wait: " + others, unseen_text(inspected));
  } else if (works || other) {
    const RankReport& worker = works ? report : ranks[*other].report;
    finding.kind = HangKind::kWorks;
    finding.text =
        concat("no progress: ", sentence, works ? "" : "; " + name_of(ranks[*other]) + " goes on");
    if (is_waited_for) {
      finding.text += ": it computes, and reads and writes nothing";
    } else {
      finding.text += concat(", working (", worker.cpu_percent, " % CPU",
                             worker.work.empty() ? "" : ", ", worker.work, ")");
      if (const auto may = worker.limit_if_working) {
        finding.text += ", may take " + tenths_text(*may);
        finding.again_in = pause_until(worker.quiet, *may);
      }
    }
    if (works && report.limit_if_working && report.quiet >= *report.limit_if_working) {
      finding.kind = HangKind::kHung;
      finding.text = concat("hang: ", sentence, rest);
      finding.ripe = true;
      finding.again_in.reset();
      return finding;
    }
    finding.text += rest;
  } else {
    const milliseconds limit = limit_if_blocked(report, inspected);
    finding.ripe = report.quiet >= limit;
    finding.kind = finding.ripe || !choice.waits_for_nobody ? HangKind::kHung : HangKind::kWorks;
    finding.text =
        concat(finding.kind == HangKind::kHung ? "hang: " : "no progress: ", sentence, rest);
    if (!finding.ripe) {
      finding.acted_upon_at = limit;
      finding.again_in = pause_until(report.quiet, limit);
    } else if (report.foreign && !finding.everyone_blocked) {
      finding.again_in = until_all_stalled(ranks);
    }
  }
  return finding;
}

bool acts_upon(const HangFinding& finding, const Inspected& inspected, HangAction action) {
  if (finding.kind != HangKind::kHung || !finding.ripe) return false;
  const auto& ranks = inspected.ranks;
  const bool foreign = finding.outlier ? ranks[*finding.outlier].report.foreign
                                       : std::ranges::all_of(ranks, [](const InspectedRank& rank) {
                                           return rank.report.foreign;
                                         });
  switch (action) {
    case HangAction::kDefault:
      return !foreign;
    case HangAction::kRestart:
      return !foreign || finding.everyone_blocked;
    case HangAction::kReport:
    case HangAction::kOff:
      break;
  }
  return false;
}

WorkerFailure hung_failure(const HangFinding& finding, const Inspected& inspected) {
  WorkerFailure failure;
  failure.exit_code = static_cast<int>(ExitCode::kTimeLimit);
  failure.hung = true;
  failure.last_lines = finding.lines;
  if (!finding.operation.empty()) failure.last_lines.erase(failure.last_lines.begin());
  failure.operation = finding.operation;
  if (failure.last_lines.size() > kMaxFailureLines) failure.last_lines.resize(kMaxFailureLines);
  const std::string others = others_text(inspected, finding.outlier);
  if (!finding.outlier) {
    failure.note = others + unseen_text(inspected);
    return failure;
  }
  const InspectedRank& outlier = inspected.ranks.at(*finding.outlier);
  failure.global_rank = outlier.report.global_rank;
  failure.local_rank = outlier.report.local_rank;
  failure.node_rank = outlier.node_rank;
  failure.host = outlier.host;
  failure.pid = outlier.report.pid;
  failure.note = concat(whereabouts(outlier.report), " for ", tenths_text(outlier.report.quiet));
  if (!others.empty()) failure.note += "; " + others;
  return failure;
}

}  // namespace ddprun::membership
