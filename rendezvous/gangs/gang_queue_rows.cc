// SPDX-License-Identifier: Apache-2.0
// The queue as rows of a journal, and back.
#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>

#include "common/error.h"
#include "common/exit_codes.h"
#include "rendezvous/gangs/gang_queue.h"
#include "rendezvous/gangs/gang_rows.h"
#include "rendezvous/membership/row_fields.h"

namespace ddprun::gangs {
namespace {

using membership::RowReader;
using membership::RowWriter;

struct NodeRow {
  std::string name, owner, user;
  int slots = 0;
};

template <typename Self, typename Fields>
requires std::same_as<std::remove_const_t<Self>, NodeRow>
void each_field(Self& node, Fields& fields) {
  fields("name", node.name);
  fields("owner", node.owner);
  fields("user", node.user);
  fields("slots", node.slots);
}

template <typename T>
std::string row_of(const T& value) {
  RowWriter writer;
  each_field(value, writer);
  return writer.text();
}

template <typename T>
T read_row(const std::string& text) {
  RowReader reader(text, {});
  T value;
  each_field(value, reader);
  return value;
}

// "gangs/17/state" → 17; 0: it is none.
std::uint64_t number_of_row(std::string_view key) {
  key.remove_prefix(std::string_view(kGangRows).size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  return error == std::errc() && end != key.data() + key.size() && *end == '/' ? number : 0;
}

}  // namespace

journal::Batch GangQueue::take_changes() {
  journal::Batch batch = std::exchange(erased_, {});
  for (auto& [number, gang] : gangs_) {
    if (!std::exchange(gang.is_changed, false)) continue;
    if (std::exchange(gang.is_new, false) && gang.spec) {
      batch.push_back({gang_row(number, kSpecRow), row_of(*gang.spec)});
    }
    batch.push_back({gang_row(number, kStateRow), row_of(gang.state)});
  }
  for (auto& [key, node] : nodes_) {
    if (!std::exchange(node.is_changed, false)) continue;
    const NodeRow row{node.name, node.owner, node.user, node.slots};
    batch.push_back({node_row(node.name, node.owner), row_of(row)});
  }
  return batch;
}

void GangQueue::restore(const journal::Rows& rows, GangTime time, GangActions& out) {
  const auto lost = [&](const std::string& key, const std::string& why) {
    out.push_back(
        gang_action::Log{LogLevel::kError, concat("row ", key, " of the journal is lost: ", why)});
    erased_.push_back({key, std::nullopt});
  };
  for (auto row = rows.lower_bound(kNodeRows); row != rows.end(); ++row) {
    if (!row->first.starts_with(kNodeRows)) break;
    try {
      const auto kept = read_row<NodeRow>(row->second);
      Node& node = nodes_[{kept.name, kept.owner}];
      node.name = kept.name;
      node.owner = kept.owner;
      node.user = kept.user;
      node.slots = std::clamp(kept.slots, 0, kMaxSlots);
      node.away_until = time.now + options_.node_grace;
      node.is_changed = false;
    } catch (const std::exception& error) {  // of JSON, too
      lost(row->first, error.what());
    }
  }
  std::map<std::uint64_t, std::pair<const std::string*, const std::string*>> found;
  for (auto row = rows.lower_bound(kGangRows); row != rows.end(); ++row) {
    if (!row->first.starts_with(kGangRows)) break;
    const std::uint64_t number = number_of_row(row->first);
    next_number_ = std::max(next_number_, number + 1);
    if (number != 0 && row->first == gang_row(number, kSpecRow)) {
      found[number].first = &row->second;
    } else if (number != 0 && row->first == gang_row(number, kStateRow)) {
      found[number].second = &row->second;
    }
  }
  for (const auto& [number, both] : found) {
    try {
      if (both.second == nullptr) throw Error(ErrorCode::kProtocol, "there is no state");
      restore_gang(number, both.first, *both.second, time, out);
    } catch (const std::exception& error) {
      lost(gang_row(number, kStateRow), error.what());
      erased_.push_back({gang_row(number, kSpecRow), std::nullopt});
    }
  }
  // A part's node of which there is no row has its time, too.
  for (auto& [number, gang] : gangs_) {
    for (const GangPart& part : gang.state.parts) {
      if (part.is_over()) continue;
      Node& node = nodes_[{part.node, gang.state.owner}];
      if (!node.name.empty()) continue;
      node.name = part.node;
      node.owner = gang.state.owner;
      node.user = gang.state.user;
      node.away_until = time.now + options_.node_grace;
    }
  }
  if (num_live_ > 0) {
    out.push_back(gang_action::Log{LogLevel::kInfo,
                                   concat("goes on with ", num_live_, " gangs; their nodes have ",
                                          options_.node_grace.count() / 1000, " s to come back")});
  }
}

void GangQueue::restore_gang(std::uint64_t number, const std::string* spec,
                             const std::string& state, GangTime time, GangActions& out) {
  Gang gang;
  gang.number = number;
  gang.state = read_row<GangState>(state);
  if (!is_gang_name(gang.state.id) || numbers_.contains(gang.state.id)) {
    throw Error(ErrorCode::kProtocol, "its id is none, or another one's");
  }
  gang.is_new = gang.is_changed = false;
  std::string trouble;
  if (gang.state.phase == GangPhase::kEnded) {
    gang.forget_at = time.now + options_.keep_finished;
  } else if (spec == nullptr) {
    trouble = "what runs is lost from the journal";
  } else {
    gang.spec = read_row<GangSpec>(*spec);
    trouble = check_spec(*gang.spec);
  }
  Gang& kept = gangs_[number] = std::move(gang);
  numbers_[kept.state.id] = number;
  if (kept.state.phase == GangPhase::kEnded) return;
  ++num_live_;
  if (kept.spec) live_bytes_ += size_of(*kept.spec);
  if (trouble.empty()) return;
  const bool has_parts = !kept.state.parts.empty();
  if (has_parts) stop(kept, trouble, out);
  if (!has_parts) end(kept, static_cast<int>(ExitCode::kRetryable), trouble, time, out);
}

}  // namespace ddprun::gangs
