// SPDX-License-Identifier: Apache-2.0
// variants::variant is used like std::variant. Compilers need half the time for its copies, moves
// and visits, and every message and event of the control plane has these.
#pragma once

#include <boost/variant2/variant.hpp>

namespace ddprun {
namespace variants = boost::variant2;
}  // namespace ddprun
