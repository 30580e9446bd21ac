// SPDX-License-Identifier: Apache-2.0
// Which rank's output the user looks at, and what the rendezvous is told of it
// (docs/status-page.md). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "ctl/top/keys.h"
#include "ctl/top/state.h"
#include "ctl/top/view.h"

namespace ddprun::top {

inline constexpr char kLookAway[] = R"({"tail":null})";

// The chosen job; null: none is, or it is over.
const Job* live_job(const State& state, const View& view);

// Where output is shown, and the chosen job is not that of the rank that is looked at: the rank of
// interest of that job is from now on.
void settle(View& view, const State& state);

// Keys that are about a rank's output. False: this one isn't.
bool press_output_key(View& view, Key key, const State& state);

// Why the rendezvous can't be asked for it; empty: it can.
std::string why_not_asked(const State& state, const LookedAt& rank);
// What it is to be told: kLookAway, or which rank is looked at.
std::string tail_wish(const View& view, const State& state);

}  // namespace ddprun::top
