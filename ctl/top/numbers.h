// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them: short, and as the status page has them. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "ctl/whole_text.h"

namespace ddprun::top {

using ctl::whole_text;

std::string number_text(double number);          // "2.31", "0.0123", "1.20e-05"
std::string seconds_text(double seconds);        // "41.0 ms", "12 min", "3 h 12 min"
std::string bytes_text(double bytes);            // "1.5 GiB"
std::string rate_text(double bytes_per_second);  // "1.2 GB/s"
std::string percent_text(double share);          // "43 %"

}  // namespace ddprun::top
