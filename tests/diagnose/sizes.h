// The world sizes that suites run at: those at which what they compute differs.
#pragma once

#include <gtest/gtest.h>

namespace lockstep::simulated {

// Of two ranks nobody is the odd one out, and "of all ranks" may be mistaken for "of two". Of three one is, and the
// samples of the jobs here do not divide.
inline const auto kTwoAndThree = testing::Values(2, 3);
// Four are two nodes of two, as many as a batch has samples, and need more than one sample of padding.
inline const auto kTwoToFour = testing::Values(2, 3, 4);
// Where a rank by itself can have the fault.
inline const auto kOneToThree = testing::Values(1, 2, 3);

}  // namespace lockstep::simulated
