// SPDX-License-Identifier: Apache-2.0
// Numbers as text for people, at a terminal and in a report. "–" if the number is not finite. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::ctl {

// Formats one number as printf does.
[[gnu::format(printf, 1, 0)]] std::string printed(const char* format, double number);

std::string whole_text(std::int64_t number);                  // "12,345"
std::string count_text(std::int64_t count, const char* one);  // "1 rank", "1,000 ranks"
std::string number_text(double number);                       // "0.0123", "2.31", "1,234"
std::string bytes_text(double bytes);                         // "1.5 GiB"
std::string rate_text(double bytes_per_second);               // "1.2 GB/s"
// 0.973 → "97 %", 0.012 → "1.2 %". Less than 1 is never "100 %": 0.9996 → "99.9 %".
std::string percent_text(double share);
// "12 µs", "41.2 ms", "3 min 5 s", "3 h 5 min", "2 d 3 h"; "–" for a negative time.
std::string seconds_text(double seconds);
std::string clock_text(double seconds);  // since a job began: "1:02:03"

}  // namespace ddprun::ctl
