// SPDX-License-Identifier: Apache-2.0
// The user's view of the jobs and how keys change it, and the picture of it: lines for a width and
// a height. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ctl/top/state.h"
#include "ctl/top/styled_text.h"

namespace ddprun::top {

enum NodeOrder { kByRank, kByCpu, kByGpu, kByNetwork, kByStepTime };
const char* order_name(NodeOrder order);

inline constexpr char kLookAway[] = R"({"tail":null})";

struct View {
  std::string wanted = {};            // Job::key(), or a run id; empty: the first one
  std::optional<bool> has_list = {};  // nullopt: where there are several jobs
  NodeOrder order = kByRank;
  bool has_help = false, has_output = false;
  std::size_t scroll = 0;                 // lines of the job that are above the screen
  std::size_t most_scroll = 0, page = 1;  // as the last picture had room
  std::string output_of = {};             // run id of the job whose rank's output is shown
  std::int64_t rank = 0;                  // that one
  std::string typed = {};                 // digits of a rank, before Enter

  bool shows_list(const State& state) const { return has_list.value_or(state.jobs.size() > 1); }
  // The job that is looked at; null: there is none.
  const Job* chosen(const State& state) const;
  // Null also where it is over.
  const Job* live_job(const State& state) const;
  bool shows_output(const State& state) const;

  // `key`: as ncurses has it. False: the user has enough.
  bool press(int key, const State& state);
  // After each state: with another job the output is that of its rank of interest.
  void settle(const State& state);

  // Why the rendezvous can't be asked for the output; empty: it can.
  std::string why_not_asked(const State& state) const;
  // The rendezvous is to be told this: kLookAway, or the rank (docs/status-page.md).
  std::string wish(const State& state) const;

 private:
  bool press_output_key(int key, const Job* job);
};

// All that is known at a moment.
struct Known {
  State state = {};
  History history = {};
  double too_large_bytes = 0;  // of a state that was not sent; 0: all were
  json::value tail = {};       // of the rank that is looked at; null: none has come yet

  // The connection to the rendezvous.
  bool is_live = false;
  std::string endpoint = {};  // as the user named it; harmless
  std::string why = {};       // it is not live; harmless
  std::string shown_at = {};  // when the state came, "03:11:40"; empty: none has come yet
};

// For a screen: exactly `rows` lines, none longer than `columns`. It is laid out for at least 4 of
// at least 20 columns. Notes in `view` how far it can be scrolled.
Lines screen_picture(const Known& known, View& view, std::size_t columns, std::size_t rows);
// For paper: the list of jobs, and all of the chosen one.
Lines paper_picture(const Known& known, View view, std::size_t columns);

// All that is shown of one job, the most urgent first, in lines of at most `columns`. An empty line
// is between the sections where no more than `rows` are needed with it.
//
// Ranks are at most `cell_rows` rows of cells: one cell for each rank, in groups by node. Without
// room for that there is one for each node, or for several, as the worst of them is. Below:
// stragglers as the daemon tells of them, then the slowest ranks, by name. The table of nodes has
// as many columns as there are values for, and room.
Lines job_lines(const Job& job, const JobHistory& history, NodeOrder order, std::size_t columns,
                std::size_t cell_rows, std::size_t rows);

}  // namespace ddprun::top
