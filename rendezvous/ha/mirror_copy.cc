// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_copy.h"

#include <exception>
#include <utility>

#include "common/log.h"
#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_transfer.h"

namespace ddprun::ha {

using journal::Batch;
using journal::RowChange;
using journal::Rows;
using std::chrono::milliseconds;
using Session = MirrorLink::Session;

namespace {
constexpr std::size_t kLimitStep = std::size_t{16} << 20;
}  // namespace

std::size_t size_of(const Batch& batch) {
  std::size_t num_bytes = 0;
  for (const RowChange& row : batch) {
    num_bytes += row.key.size() + (row.content ? row.content->size() : 0);
  }
  return num_bytes;
}

milliseconds limit_for(const MirrorWriterOptions& options, milliseconds limit,
                       std::size_t num_bytes) {
  return limit + options.limit_per_16_mib * static_cast<int>(num_bytes / kLimitStep);
}

void send_batch(MirrorLink& link, Session session, const Batch& batch, Deadline deadline) {
  const std::uint64_t number = link.begin_transfer(session);
  mirror::RowCutter cutter(mirror::Transfer::kBatch, number, [&](std::string part) {
    link.send_part(session, std::move(part), deadline);
  });
  for (const RowChange& row : batch) {
    if (!is_leader_row(row.key)) cutter.add(row);
  }
  cutter.finish();
  link.await_ack(session, number, deadline);
}

void MirrorCopy::run(Session session) {
  try {
    const std::size_t num_bytes = send_snapshot(session);
    const milliseconds limit = limit_for(options_, options_.snapshot_limit, num_bytes);
    link_.await_ack(session, 1, Deadline::after(limit));
    const Deadline deadline = Deadline::after(options_.catch_up_limit);
    while (!catch_up(session)) {
      if (!deadline.expired()) continue;
      link_.end(session, concat("rows change faster than it takes them, for ",
                                options_.catch_up_limit.count(), " ms"));
    }
  } catch (const MirrorLost&) {  // said where it is noticed
  } catch (const std::exception& error) {
    link_.end(session, error.what());
  }
  end();
}

// Under its turn: so the file has all rows up to here, and `dirty_` gets all that changes.
void MirrorCopy::begin() {
  const MirrorTurn turn(turns_);
  is_copying_ = true;
  is_read_ = false;
  read_up_to_.clear();
  dirty_.clear();
}

void MirrorCopy::end() {
  try {
    const MirrorTurn turn(turns_);
    is_copying_ = false;
    dirty_.clear();
  } catch (const std::exception&) {  // there are no turns any more
  }
}

// Bytes in it.
std::size_t MirrorCopy::send_snapshot(Session session) {
  begin();
  mirror::RowCutter cutter(
      mirror::Transfer::kSnapshot, link_.begin_transfer(session), [&](std::string part) {
        link_.send_part(session, std::move(part), Deadline::after(options_.stall_limit));
      });
  for (Rows rows = next_page(); !rows.empty(); rows = next_page()) {
    for (const auto& [key, content] : rows) {
      if (!is_leader_row(key)) cutter.add(key, &content);
    }
  }
  const Batch changes = [this] {
    const MirrorTurn turn(turns_);
    return take_changes();
  }();
  for (const RowChange& row : changes) cutter.add(row);
  cutter.finish();
  return cutter.num_bytes();
}

Rows MirrorCopy::next_page() {
  const MirrorTurn turn(turns_);
  Rows rows = file_.read_after(read_up_to_, options_.page_bytes);
  if (rows.empty()) {
    is_read_ = true;
  } else {
    read_up_to_ = rows.rbegin()->first;
  }
  return rows;
}

void MirrorCopy::note_changes(const Batch& batch) {
  if (!is_copying_) return;
  for (const RowChange& row : batch) {
    if (is_leader_row(row.key)) continue;
    const bool will_be_read = !is_read_ && row.key > read_up_to_;
    if (!will_be_read) dirty_.insert(row.key);
  }
}

// In turn: what was changed after it was read, as it is now; about a page of it.
Batch MirrorCopy::take_changes() {
  Batch changes;
  std::size_t num_bytes = 0;
  while (!dirty_.empty() && num_bytes < options_.page_bytes) {
    const std::string key = dirty_.extract(dirty_.begin()).value();
    changes.push_back({key, file_.read(key)});
    num_bytes += key.size() + (changes.back().content ? changes.back().content->size() : 0);
  }
  return changes;
}

// True: the standby has all, and commits go there first from now on.
bool MirrorCopy::catch_up(Session session) {
  Batch changes;
  {
    const MirrorTurn turn(turns_);
    changes = take_changes();
    if (dirty_.empty() && size_of(changes) <= options_.page_bytes) {
      if (!changes.empty()) {
        send_batch(link_, session, changes, Deadline::after(options_.last_step_limit));
      }
      is_copying_ = false;
      link_.mirror(session);
      return true;
    }
  }
  const milliseconds limit = limit_for(options_, options_.snapshot_limit, size_of(changes));
  send_batch(link_, session, changes, Deadline::after(limit));
  return false;
}

}  // namespace ddprun::ha
