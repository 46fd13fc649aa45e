add_lockstep_test(train_test TORCH
  SOURCES train_data_parallel_test.cpp train_dataset_test.cpp train_idx_file_test.cpp train_optim_test.cpp
          train_replicas_test.cpp train_sampler_test.cpp train_seeding_test.cpp
  DEPENDS lockstep::train ZLIB::ZLIB LABEL unit)
