// SPDX-License-Identifier: Apache-2.0
// The user's view of the jobs, how keys change it, and its picture: lines for a given width and
// height. Pure.
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
  std::string wanted = {};            // Job::key(), or a run id; empty: the first job
  std::optional<bool> has_list = {};  // shows the list of jobs; nullopt: if there are several
  NodeOrder order = kByRank;
  bool has_help = false, has_output = false;
  std::size_t scroll = 0;                 // lines of the job above the screen
  std::size_t most_scroll = 0, page = 1;  // in lines, as the last picture had room
  std::string output_of = {};             // run id of the job whose rank's output is shown
  std::int64_t rank = 0;                  // the rank whose output is shown
  std::string typed = {};                 // digits of a rank, typed before Enter

  bool shows_list(const State& state) const { return has_list.value_or(state.jobs.size() > 1); }
  // Returns the chosen job; null: there are no jobs.
  const Job* chosen(const State& state) const;
  // Returns the chosen job; null also if it is over.
  const Job* live_job(const State& state) const;
  bool shows_output(const State& state) const;

  // `key` is as in ncurses. False: the user quits.
  bool press(int key, const State& state);
  // Called after each new state: if the job changed, shows the output of its rank of interest.
  void settle(const State& state);

  // Says why the rendezvous can't be asked for the output; empty: it can.
  std::string why_not_asked(const State& state) const;
  // Returns what the rendezvous is to be told: kLookAway, or the rank (docs/status-page.md).
  std::string wish(const State& state) const;

 private:
  bool press_output_key(int key, const Job* job);
};

// All that is known at one moment.
struct Known {
  State state = {};
  History history = {};
  double too_large_bytes = 0;  // size of a state that was too large to be sent; 0: all were sent
  json::value tail = {};       // the shown rank's output; null: none has come yet

  // About the connection to the rendezvous.
  bool is_live = false;
  std::string endpoint = {};  // as the user named it; harmless text
  std::string why = {};       // why it isn't live; harmless text
  std::string shown_at = {};  // when the last state came, "03:11:40"; empty: none yet
};

// Draws the screen: exactly `rows` lines, none longer than `columns`. The layout needs 4 rows and
// 20 columns; a smaller screen cuts it. Sets in `view` how far it can be scrolled.
Lines screen_picture(const Known& known, View& view, std::size_t columns, std::size_t rows);
// Draws for paper: the list of jobs, and the whole chosen job.
Lines paper_picture(const Known& known, View view, std::size_t columns);

// Shows all of one job, the most urgent first, in lines of at most `columns`. Sections have an
// empty line between them, if the lines then are no more than `rows`.
//
// Ranks take at most `cell_rows` rows of cells: one cell for each rank, grouped by node. If these
// don't fit, a cell stands for a node or several, and shows their worst rank. Below are stragglers
// as the daemon reports them, then the slowest ranks by name. The table of nodes shows each column
// that has values and fits.
Lines job_lines(const Job& job, const JobHistory& history, NodeOrder order, std::size_t columns,
                std::size_t cell_rows, std::size_t rows);

}  // namespace ddprun::top
