// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them (ctl/number_texts.h), and round ones for axes. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ctl/number_texts.h"

namespace ddprun::report {

using ctl::bytes_text, ctl::count_text, ctl::number_text, ctl::percent_text, ctl::rate_text;
using ctl::seconds_text, ctl::whole_text;

std::string clock_text(double seconds);  // since the job began: "1:02:03"

using TextOf = std::string (*)(double value);

// Of a round value: without zeros behind its point. "1.50 GB/s" → "1.5 GB/s".
std::string tick_text(double value, TextOf text);

// Round values from at or below `low` to at or above `high`, about `wanted` steps: 1, 2 or 5 times
// a power of ten. Of no range: one around it.
std::vector<double> nice_ticks(double low, double high, int wanted);

// Likewise of bytes, whose round values are powers of two below each 1,024-fold.
std::vector<double> nice_byte_ticks(double high, int wanted);

// Of time, from 0 to at most `high`: seconds, minutes, hours and days that people count in.
std::vector<double> time_ticks(double high, int wanted);

}  // namespace ddprun::report
