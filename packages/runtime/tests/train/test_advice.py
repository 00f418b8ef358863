"""What a person is told after a divergence is true of what lies on the disk."""

from kanawa_runtime.train.outcome import advice


def test_a_saved_step_that_only_an_evaluation_complains_of_is_kept(tmp_path):
    text = advice(20, began=20, dropped=None, steps=[10, 20], run=tmp_path)
    assert text.startswith("checkpoint 20 is kept, since the step after it was sound")
    assert text.endswith("--from-step 10")
    assert "nothing of this step is saved" not in text
    assert "--from-step" not in advice(20, began=20, dropped=None, steps=[20], run=tmp_path)


def test_a_step_that_leads_to_the_error_is_not_offered(tmp_path):
    text = advice(21, began=0, dropped=20, steps=[10], run=tmp_path)
    assert "nothing of this step is saved, nor the state of step 20, which leads to it" in text
    assert "Step 10 is good" in text
    assert text.count("--from-step") == 1
