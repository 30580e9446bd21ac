// SPDX-License-Identifier: Apache-2.0
// The picture as a whole: lines for a width and a height. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "ctl/top/history.h"
#include "ctl/top/state.h"
#include "ctl/top/styled_text.h"
#include "ctl/top/view.h"

namespace ddprun::top {

// To the rendezvous.
struct Connection {
  enum class Kind { kConnecting, kLive, kLost };
  Kind kind = Kind::kConnecting;
  std::string endpoint;  // as the user named it
  std::string why;       // it is not live; harmless
  std::string shown_at;  // when what is shown came, "03:11:40"; empty: there is nothing yet
};

// What is known at a moment.
struct Known {
  const State* state = nullptr;  // null: nothing has come yet
  const History* history = nullptr;
  double too_large_bytes = 0;         // of a state that was not sent; 0: all were
  const json::value* tail = nullptr;  // of the rank that is looked at; null: none has come yet
};

struct Picture {
  Lines lines;  // none longer than the width
  Extent extent;
};

// For a screen: exactly `rows` lines. It is laid out for at least 4 of at least 20 columns.
Picture screen_picture(const Known& known, const View& view, const Connection& connection,
                       std::size_t columns, std::size_t rows);
// For paper: the list of jobs, and all of the chosen one.
Lines paper_picture(const Known& known, const View& view, const Connection& connection,
                    std::size_t columns);

}  // namespace ddprun::top
