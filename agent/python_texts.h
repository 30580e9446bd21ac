// SPDX-License-Identifier: Apache-2.0
// Programs in Python that ddprun carries.
#pragma once

namespace ddprun::agent {

extern const char kWarmHelperText[];  // warm/{notes,safety,thread_numbers,warm_helper}.py
extern const char kObserverText[];    // observe/sitecustomize.py

}  // namespace ddprun::agent
