// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/output_panel.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "common/log.h"
#include "ctl/top/looking.h"

namespace ddprun::top {
namespace {

using Lines = std::vector<Line>;

// The newest rows, at most `rows`: of a line that is too long for that its end.
Lines newest_rows(const std::vector<std::string>& lines, std::size_t columns, std::size_t rows) {
  constexpr std::size_t kMostRows = 4'096;  // of one line: all of it
  Lines all;                                // newest first
  for (auto line = lines.rbegin(); line != lines.rend() && all.size() < rows; ++line) {
    std::vector<std::string> parts = wrapped(*line, columns, kMostRows);
    if (parts.empty()) parts.emplace_back();
    for (auto part = parts.rbegin(); part != parts.rend() && all.size() < rows; ++part) {
      all.emplace_back(*part);
    }
  }
  std::reverse(all.begin(), all.end());
  return all;
}

std::string note_of(const State& state, const LookedAt& rank, bool is_live, const Tail* tail) {
  if (!is_live) return "the job is over; these lines are what was shown last";
  if (std::string why = why_not_asked(state, rank); !why.empty()) return why;
  if (tail == nullptr) return "asking its agent …";
  if (!tail->note.empty()) return tail->note;
  return tail->lines.empty() ? "it has printed nothing yet" : "";
}

}  // namespace

bool has_output_panel(const State& state, const View& view) {
  if (!view.has_output || !view.looked_at) return false;
  const auto at = chosen(state, view);
  if (!at) return false;
  const bool is_live = *at < state.jobs.size();
  const std::string& run_id =
      is_live ? state.jobs[*at].run_id : state.finished[*at - state.jobs.size()].run_id;
  return run_id == view.looked_at->run_id;
}

Lines output_lines(const State& state, const View& view, const Tail* tail, std::size_t columns,
                   std::size_t rows) {
  const bool is_live = live_job(state, view) != nullptr;
  Line title(concat("OUTPUT of rank ", view.looked_at->rank), Style::kTitle);
  Lines lines;
  const std::string note = note_of(state, *view.looked_at, is_live, tail);
  constexpr std::size_t kMostNote = 3;
  if (!note.empty() && title.columns() + 2 + columns_of(harmless(note)) <= columns) {
    lines.push_back(title.add("  ").add(note, Style::kDim));
  } else {
    lines.push_back(title);
    for (const std::string& part : wrapped(note, columns, std::min(kMostNote, rows / 2))) {
      lines.emplace_back(part, Style::kDim);
    }
  }
  lines.resize(std::min(lines.size(), rows));
  Lines newest;
  if (tail != nullptr) newest = newest_rows(tail->lines, columns, rows - lines.size());
  lines.resize(rows - newest.size());
  lines.insert(lines.end(), std::make_move_iterator(newest.begin()),
               std::make_move_iterator(newest.end()));
  return lines;
}

}  // namespace ddprun::top
