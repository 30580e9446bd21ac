// SPDX-License-Identifier: Apache-2.0
#include "ctl/stack/folded_stacks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/json.h"
#include "common/operation_facts.h"
#include "common/text.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "rendezvous/messages/json_fields.h"
#include "rendezvous/messages/messages.h"
#include "rendezvous/messages/stacks_target.h"

namespace ddprun::ctl {
namespace {

constexpr char kPage[] = "the page";

using Lines = std::vector<std::string>;

constexpr std::size_t kMostParts = 32;  // of an entry's ranks, as in "0–3, 7"
constexpr std::size_t kMostStates = 4;  // states that one header names
constexpr std::size_t kMostHosts = 8;   // words for an entry's hosts
constexpr std::size_t kMaxHostBytes = 256;

struct Stack {
  std::string state;
  Lines python, native;
};

// Ranks at the same place, or without a stack for the same reason.
struct Entry {
  std::vector<int> ranks;
  Lines hosts;
  std::map<std::string, std::size_t> states;  // how many ranks are in each
  Lines python, native;                       // frames to show
  std::set<std::string> notes;
};

Stack read_stack(const Lines& lines) {
  Stack stack;
  for (const std::string& each : lines) {
    std::string_view line = each;
    const auto take = [&line](std::string_view kind) {
      if (!line.starts_with(kind)) return false;
      line.remove_prefix(kind.size());
      return true;
    };
    if (take(membership::kStateLine)) {
      stack.state = one_line(line);
    } else if (take(membership::kPythonLine)) {
      stack.python.push_back(one_line(line));
    } else if (take(membership::kNativeLine)) {
      stack.native.push_back(one_line(line));
    }
  }
  // The kernel doesn't say where a running rank is, but the stack does.
  if (stack.state == "running" && !stack.native.empty())
    stack.state += " in " + stack.native.front();
  return stack;
}

std::string states_text(const Entry& entry) {
  if (entry.states.size() == 1) return entry.states.begin()->first;
  std::vector<std::pair<std::size_t, std::string>> states;
  for (const auto& [state, num] : entry.states) states.emplace_back(num, state);
  std::ranges::stable_sort(states, std::greater<>(), &std::pair<std::size_t, std::string>::first);
  return first_listed(states, kMostStates,
                      [](const auto& each) { return concat(each.first, " ", each.second); });
}

std::string entry_text(const Entry& entry, bool is_missing) {
  const std::string hosts = doctor::host_ranges(entry.hosts, kMostHosts);
  std::string text = ranks_text(entry.ranks, kMostParts);
  if (!hosts.empty()) text += concat(" (", hosts, ")");
  if (is_missing) return concat(text, ": ", listed(entry.notes), "\n");
  text += concat(": ", states_text(entry), "\n");
  for (const std::string& frame : entry.python) text += concat("    ", frame, "\n");
  if (!entry.python.empty() && !entry.native.empty()) text += "    native:\n";
  for (const std::string& frame : entry.native) text += concat("    ", frame, "\n");
  for (const std::string& note : entry.notes) text += concat("    (", note, ")\n");
  return text;
}

std::string no_stack_text(const std::string& note, const std::string& state) {
  constexpr std::string_view kNone = "no stack: ";
  std::string text = note.empty() ? "its agent found none" : note;
  if (!text.starts_with(kNone)) text.insert(0, kNone);
  return state.empty() ? text : concat(text, "; ", state);
}

}  // namespace

boost::json::object parse_stacks(const std::string& page) {
  boost::json::object all = parsed_object(page);
  const JsonFields fields(all, kPage);
  if (fields.has("problem")) {
    throw Error(ErrorCode::kInvalidArgument, one_line(fields.text("problem")));
  }
  return all;
}

FoldedStacks fold_stacks(const std::string& page, bool has_native) {
  const auto all = parse_stacks(page);
  const JsonFields fields(all, kPage);
  FoldedStacks folded;
  std::map<Lines, Entry> entries, missing;
  for (const JsonFields& rank : fields.objects("ranks", membership::kMostStacks)) {
    const Stack stack =
        read_stack(rank.texts("lines", membership::kMaxTailLines, membership::kMaxLineBytes));
    const std::string note = one_line(rank.clipped("note", kMaxShownBytes));
    const bool is_missing = stack.python.empty() && stack.native.empty();
    const std::string reason = is_missing ? no_stack_text(note, stack.state) : note;
    const bool by_native = has_native || stack.python.empty();
    Lines key{reason};
    if (!is_missing) {
      key = stack.python;
      key.emplace_back();
      if (by_native) key.insert(key.end(), stack.native.begin(), stack.native.end());
    }
    Entry& entry = (is_missing ? missing : entries)[std::move(key)];
    entry.ranks.push_back(rank.small("rank", 0, membership::kMaxInt));
    const std::string host = one_line(rank.clipped("host", kMaxHostBytes));
    if (!host.empty()) entry.hosts.push_back(host);
    if (!stack.state.empty()) ++entry.states[stack.state];
    entry.python = stack.python;
    if (by_native) entry.native = stack.native;
    if (!reason.empty()) entry.notes.insert(reason);
    ++folded.num_ranks;
    folded.num_missing += is_missing ? 1 : 0;
  }
  for (const auto* some : {&entries, &missing}) {
    std::vector<const Entry*> ordered;
    for (const auto& [key, entry] : *some) ordered.push_back(&entry);
    std::ranges::sort(ordered, {}, [](const Entry* entry) {
      return std::pair(-std::ssize(entry->ranks), entry->ranks.front());
    });
    for (const Entry* entry : ordered) folded.text += entry_text(*entry, some == &missing);
  }
  return folded;
}

}  // namespace ddprun::ctl
