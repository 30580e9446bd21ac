// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, and round ones for axes. As the status page writes them
// (rendezvous/daemon/page/text.js). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ctl/whole_text.h"

namespace ddprun::report {

using ctl::whole_text;

std::string number_text(double value);                        // "0.0123", "12.34", "1,234"
std::string count_text(std::int64_t count, const char* one);  // "1 rank", "1,000 ranks"
std::string bytes_text(double bytes);                         // "1.5 GiB"
std::string rate_text(double bytes_per_second);               // "1.2 GB/s"
std::string percent_text(double share);                       // 0.973 → "97 %", 0.012 → "1.2 %"
std::string seconds_text(double seconds);                     // "12 µs" … "3 h 5 min", "2 d 3 h"
std::string clock_text(double seconds);                       // since the job began: "1:02:03"

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
